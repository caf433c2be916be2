"""The command line, which `app` assembles. Every command has a file of its name.

`onnx` has optimize, rewrite and verify. `options` holds shared options, parsers and the form of
help, `npy` arrays in files, `report` output, `exits` exit codes, `bench_layers` the layers and
candidates of `bench`. Nothing here computes: commands call the library.
"""
