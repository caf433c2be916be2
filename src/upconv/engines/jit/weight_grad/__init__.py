"""The weight gradient's kernels."""
