"""The tests of upconv, in folders named after those of `src/upconv`."""
