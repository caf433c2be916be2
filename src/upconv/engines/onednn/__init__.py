"""The oneDNN engine: libdnnl's own deconvolution and convolution primitives, through its C API.

abi    prototypes, codes and owned handles: the only file that declares the library
"""
