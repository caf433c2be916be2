"""The channels kernel: vectors run along channels."""
