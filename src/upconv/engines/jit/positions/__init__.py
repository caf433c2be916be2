"""The positions kernel: vectors run along one phase's positions."""
