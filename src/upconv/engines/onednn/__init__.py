"""The oneDNN engine: libdnnl's deconvolution and convolution primitives, through its C API.

abi          prototypes, codes and owned handles: the only file that declares the library
library      the search for the library, and its single loaded copy
descriptors  problems as the library describes them, and reasons to refuse them
candidates   the layouts offered to the library, and the choice of an implementation
sequence     sequences of primitives, with their memory and streams
openmp       setting the number of threads, even after a fork
primitive    a problem on the library: packed weights, reordered arrays
engine       refusals, variants, and building primitives
selftest     a test that excludes implementations that err on this processor
"""
