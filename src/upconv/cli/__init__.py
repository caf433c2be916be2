"""The command line, put together by `app`: `models` has optimize, rewrite and verify; every other
command has a file of its name.

`options` holds what commands share of arguments, `usage` of help, `npy` of arrays in files,
`report` of output, and `exits` of exit codes. Nothing here computes: commands call the library.
"""
