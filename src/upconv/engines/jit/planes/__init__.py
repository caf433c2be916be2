"""The planes kernel: depthwise layers, read where they lie."""
