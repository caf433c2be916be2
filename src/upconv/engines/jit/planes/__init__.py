"""The planes kernel for depthwise layers, which reads its input without packing."""
