"""The engine for arrays on NVIDIA GPUs, using NVIDIA's library cuDNN; see `engine.Cudnn`."""
