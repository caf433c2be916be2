"""The channel-vectorised kernel: vectors run along channels."""
