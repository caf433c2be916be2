"""The partition of a graph: convex groups of units with a convolution in each.

A group is convex if no path leads out of it and back into it: then it can run as one node. Units
that a network can compute, and that hang together, begin as groups of one. Along each value the
groups of its maker and its reader are merged, unless another path leads from one to the other.
"""

from __future__ import annotations

from collections.abc import Collection

import onnx_ir as ir

from .units import Unit


def partition(
    units: list[Unit], fitting: Collection[Unit], seeds: Collection[Unit]
) -> list[list[Unit]]:
    """Convex groups of fitting units, each with a seed in it, in the order of the graph.

    units: all units of the graph, in an order in which they can run.
    """
    makers = {y: i for i, unit in enumerate(units) for node in unit.nodes for y in node.outputs}
    sources = [sorted({makers[x] for x in unit.inputs if x in makers}) for unit in units]
    near = _near(units, sources, fitting, seeds)
    groups = _Groups(sources)
    for i in sorted(near):
        for source in sources[i]:
            if source in near:
                groups.merge(source, i)
    members: dict[int, list[Unit]] = {}
    for i in sorted(near):
        members.setdefault(groups.of[i], []).append(units[i])
    return [group for group in members.values() if not set(seeds).isdisjoint(group)]


def _near(
    units: list[Unit],
    sources: list[list[int]],
    fitting: Collection[Unit],
    seeds: Collection[Unit],
) -> set[int]:
    """The fitting units that are connected with a seed by fitting units."""
    neighbours: list[set[int]] = [set(inputs) for inputs in sources]
    for i, inputs in enumerate(sources):
        for source in inputs:
            neighbours[source].add(i)
    waiting = [i for i, unit in enumerate(units) if unit in seeds and unit in fitting]
    near = set(waiting)
    while waiting:
        for i in neighbours[waiting.pop()]:
            if i not in near and units[i] in fitting:
                near.add(i)
                waiting.append(i)
    return near


class _Groups:
    """Groups of units; `of` is the group of each, `targets` the groups that read from each."""

    def __init__(self, sources: list[list[int]]) -> None:
        self.of = [*range(len(sources))]
        self._members = [{i} for i in self.of]
        self._targets: list[set[int]] = [set() for _ in sources]
        for i, inputs in enumerate(sources):
            for source in inputs:
                self._targets[source].add(i)

    def merge(self, a: int, b: int) -> None:
        """Merge the groups of two units, the second of which reads from the first, if they may."""
        first, second = self.of[a], self.of[b]
        if first == second or self._detour(first, second):
            return
        for i in self._members[second]:
            self.of[i] = first
        self._members[first] |= self._members[second]
        self._targets[first] |= self._targets[second]

    def _after(self, group: int) -> set[int]:
        return {self.of[i] for i in self._targets[group]} - {group}

    def _detour(self, first: int, second: int) -> bool:
        """Whether a path leads from one group to the other by way of a third one."""
        latest = max(self._members[second])
        waiting = [*self._after(first) - {second}]
        known = set(waiting)
        while waiting:
            for group in self._after(waiting.pop()):
                if group == second:
                    return True
                if group not in known and min(self._members[group]) < latest:
                    known.add(group)
                    waiting.append(group)
        return False


def boundary(group: list[Unit]) -> tuple[list[ir.Value], list[ir.Value]]:
    """The values that a group reads from outside, constants aside, and those that others read."""
    nodes = {node for unit in group for node in unit.nodes}
    produced = {y: None for unit in group for node in unit.nodes for y in node.outputs}
    inputs = dict.fromkeys(x for unit in group for x in unit.inputs if x not in produced)
    outputs = [
        y for y in produced if y.is_graph_output() or any(use.node not in nodes for use in y.uses())
    ]
    return [*inputs], outputs
