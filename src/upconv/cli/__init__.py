"""The command line, put together by `app`: `layer` (run, shape, explain), `models` (optimize,
rewrite, verify), and one file for each other command.

`options` holds what commands share of arguments, `npy` of arrays in files, `report` of output, and
`exits` of exit codes. Nothing here computes: it is the library's public functions with words.
"""
