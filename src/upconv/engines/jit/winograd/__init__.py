"""The Winograd kernel: correlations with fewer products than direct sums."""
