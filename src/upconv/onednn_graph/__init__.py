"""oneDNN Graph on upconv: its operations, its vocabulary, any engine.

A face: graphs are written as for oneDNN's Graph API and run by upconv. Chains of a transposed
convolution, bias, batch norm, addition and activation become one `upconv.Plan`.

    logical_tensors   ids, types, dims
    schemas           the table of operations
    operations        what is written, and what is read of it
    convolutions      the six convolutions' shapes and axes
    elementwise       all other operations, by NumPy
    fusion, steps     chains, and what runs them
    data              arrays by tensor id, checked
    partitions, graph the vocabulary: compile, execute; add_op, finalize, partitions
    library, _child, _abi   the same graph by libdnnl itself, in a child process
"""

from __future__ import annotations

from .graph import CompiledGraph, Graph
from .library import LibraryProcess, run_by_library
from .logical_tensors import LogicalTensor
from .operations import Op
from .partitions import CompiledPartition, Partition
from .schemas import SCHEMAS

__all__ = [
    "SCHEMAS",
    "CompiledGraph",
    "CompiledPartition",
    "Graph",
    "LibraryProcess",
    "LogicalTensor",
    "Op",
    "Partition",
    "run_by_library",
]
