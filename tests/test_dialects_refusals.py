"""What every dialect refuses to read, and the words in which it does."""
