"""The oneDNN engine: libdnnl's own deconvolution and convolution primitives, through its C API.

abi          prototypes, codes and owned handles: the only file that declares the library
library      search for the library, and the one loaded copy
descriptors  a problem as descriptors of the library, and the reasons to refuse one
candidates   layouts in which data is offered, and the choice of an implementation
sequence     sequences of primitives: memory, streams
openmp       the number of threads, even after a fork
primitive    one problem: packed weights, reordered arrays
engine       refusals, variants and building
selftest     implementations that err on this processor
"""
