"""The im2col kernel: inner products of weight rows, read in place, and gathered inputs."""
