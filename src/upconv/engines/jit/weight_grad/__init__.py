"""The weight gradient's kernel."""
