"""The oneDNN engine: libdnnl's own deconvolution and convolution primitives, through its C API.

abi          prototypes, codes and owned handles: the only file that declares the library
library      finding it, and the one loaded copy
descriptors  a problem in its words, and what it cannot be given
candidates   in which layouts to offer data, and which of its implementations to take
sequence     executing primitives one after the other: memory, streams
openmp       on how many threads, also after a fork
primitive    one problem: its weight packed, its arrays reordered where the library wants
engine       what it refuses, and building
selftest     implementations that err on this processor
"""
