"""The im2col kernel: inner products of rows of the weight, read in place, and gathered inputs."""
