"""The Winograd kernel: a correlation by fewer products."""
