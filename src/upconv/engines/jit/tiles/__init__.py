"""The tile kernel: bfloat16 products of 16 positions by 16 channels in tile registers."""
