"""Networks: the convolutional part of a model, compiled to one native program.

builder       `Network`: a model written call by call
layers        the methods of `Network` that add layers
graph         values, nodes and operations, as frozen data
kinds         the table of operations: names and shape rules
definitions   the meaning of every operation in NumPy
"""

from .builder import Network
from .values import Value

__all__ = ["Network", "Value"]
