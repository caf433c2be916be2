"""The command line: `app` assembles the commands, and most commands have a module of their own.

`onnx` holds optimize, rewrite and verify. `options` holds shared options, their parsers and the
help layout. `npy` reads and writes arrays, `report` prints results, and `exits` sets exit codes.
`bench_layers` holds the layers and candidates of `bench`. The commands only call the library.
"""
