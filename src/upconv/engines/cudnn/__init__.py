"""cuDNN, NVIDIA's library, for arrays on NVIDIA GPUs: see `engine.Cudnn`."""
