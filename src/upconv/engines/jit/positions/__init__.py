"""The spatially vectorised kernel: vectors run along positions of one phase."""
