"""The command line: one file per command, put together by `app`.

`options` holds what commands share of arguments, `npy` of arrays in files, `report` of output, and
`endings` of exit codes. Nothing here computes: it is the library's public functions with words.
"""
