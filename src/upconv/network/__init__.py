"""Networks: the convolutional part of a model, compiled to one native program.

graph    values, nodes and operations, as frozen data
"""
