"""The oneDNN engine: libdnnl's own deconvolution and convolution primitives, through its C API.

abi          prototypes, codes and owned handles: the only file that declares the library
library      search for the library, and the one loaded copy
descriptors  a problem as descriptors of the library, and the reasons to refuse one
candidates   layouts to offer data in, and the choice of an implementation
sequence     sequences of primitives: memory, streams
openmp       the number of threads, also after a fork
primitive    one problem: packed weights, reordered arrays
engine       refusals, and building
selftest     implementations that err on this processor
"""
