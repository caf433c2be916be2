"""The positions kernel: vectors run along positions of one phase."""
