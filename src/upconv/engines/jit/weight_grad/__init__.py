"""The kernels of the weight gradient."""
