"""The oneDNN engine: libdnnl's own deconvolution and convolution primitives, through its C API.

    abi             prototypes, codes and owned handles: the only file that declares the library
library         finding it, and the one loaded copy
descriptors     a problem in its words, and what it cannot be given
candidates      ways to give it a problem, and which of its implementations to take
script, teams   executing primitives: memory, streams, threads, forks
primitive       one problem: its weight packed, its arrays brought where they are wanted
engine          what it refuses, and building
"""
