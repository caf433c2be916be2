"""The engine for arrays on NVIDIA GPUs, by NVIDIA's library cuDNN; see `engine.Cudnn`."""
