"""Partition a graph into convex groups of units, each with a convolution.

A group is convex if no path leads out of it and back in: it can then run as one node. Connected
units that a network can compute start as groups of one. For each value, its producer's group and
its reader's group are merged, unless another path leads from one to the other.
"""

from __future__ import annotations

from collections.abc import Collection

import onnx_ir as ir

from .units import Unit


def partition(
    units: list[Unit], fitting: Collection[Unit], seeds: Collection[Unit]
) -> list[list[Unit]]:
    """Return convex groups of fitting units, each with a seed, in the graph's order.

    units: all units of the graph, in an order in which they can run.
    """
    producers = {y: i for i, unit in enumerate(units) for node in unit.nodes for y in node.outputs}
    sources = [sorted({producers[x] for x in unit.inputs if x in producers}) for unit in units]
    readers: list[set[int]] = [set() for _ in units]
    for i, inputs in enumerate(sources):
        for source in inputs:
            readers[source].add(i)
    near = _near(units, sources, readers, fitting, seeds)
    groups = _Groups(readers)
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
    readers: list[set[int]],
    fitting: Collection[Unit],
    seeds: Collection[Unit],
) -> set[int]:
    """Return the fitting units that are connected to a seed through fitting units."""
    waiting = [i for i, unit in enumerate(units) if unit in seeds and unit in fitting]
    near = set(waiting)
    while waiting:
        i = waiting.pop()
        more = {j for j in (*sources[i], *readers[i]) if units[j] in fitting} - near
        near |= more
        waiting += more
    return near


class _Groups:
    """Groups of units; `of` is each unit's group, `readers` the units that read from each unit."""

    def __init__(self, readers: list[set[int]]) -> None:
        self.of = [*range(len(readers))]
        self._members = [{i} for i in self.of]
        self._readers = readers

    def merge(self, a: int, b: int) -> None:
        """Merge the groups of two units if this is allowed; the second unit reads the first."""
        first, second = self.of[a], self.of[b]
        if first == second or self._detour(first, second):
            return
        for i in self._members[second]:
            self.of[i] = first
        self._members[first] |= self._members[second]
        self._readers[first] |= self._readers[second]

    def _after(self, group: int) -> set[int]:
        return {self.of[i] for i in self._readers[group]} - {group}

    def _detour(self, first: int, second: int) -> bool:
        """Return whether a path leads from one group to the other through a third group."""
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


def makers(group: list[Unit]) -> dict[ir.Value, Unit]:
    """Return the unit that produces each value of a group."""
    return {y: unit for unit in group for node in unit.nodes for y in node.outputs}


def boundary(group: list[Unit]) -> tuple[list[ir.Value], list[ir.Value]]:
    """Return the non-constant values that a group reads, and its values that others read."""
    nodes = {node for unit in group for node in unit.nodes}
    produced = {y: None for unit in group for node in unit.nodes for y in node.outputs}
    inputs = dict.fromkeys(x for unit in group for x in unit.inputs if x not in produced)
    outputs = [
        y for y in produced if y.is_graph_output() or any(use.node not in nodes for use in y.uses())
    ]
    return [*inputs], outputs
