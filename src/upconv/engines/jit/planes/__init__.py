"""The planes kernel: depthwise layers, read without packing."""
