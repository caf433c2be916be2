"""Rewriting by rule, for runtimes that lack the operator or a part of it.

    npu                 no ConvTranspose is left
    plain               only 2D ones, without any of the following
    no-1d               none with one spatial axis
    no-auto-pad         none with auto_pad or output_shape
    no-asymmetric       none whose pads differ at begin and end
    no-output-padding   none with output_padding
    no-dilation         none with dilation
    no-groups           none with more than one group

What a profile forbids and its passes cannot take away is named, with the reason.
What lives here: the table. What never does: measuring; a profile is obeyed whatever it costs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import onnx_ir as ir

from ...dialects.onnx import AutoPad, Rule
from ...errors import ArgumentError, brief
from ..nodes import ConvTransposeNode, Unreadable, conv_transpose_nodes
from ..passes import PASSES, Step
from ..passes.base import run


@dataclass(frozen=True, slots=True)
class Requirement:
    """What must not be left: the passes that see to it, and how it is recognised."""

    passes: tuple[str, ...]
    broken_by: Callable[[ConvTransposeNode], bool]


def _pads(site: ConvTransposeNode) -> list[tuple[int, int]]:
    pads = [int(entry) for entry in site.node.attributes.get_ints("pads", ())]
    return list(zip(pads[: site.rank], pads[site.rank :], strict=True))


REQUIREMENTS: dict[str, Requirement] = {
    "no-auto-pad": Requirement(
        ("normalise",),
        lambda site: site.auto_pad is not AutoPad.NOTSET or site.has_output_shape,
    ),
    "no-1d": Requirement(("to_rank",), lambda site: site.rank == 1),
    "no-groups": Requirement(("split_groups",), lambda site: site.groups > 1),
    "no-dilation": Requirement(
        ("no_dilation",), lambda site: any(a.dilation > 1 and a.kernel > 1 for a in site.axes)
    ),
    "no-output-padding": Requirement(
        ("no_output_padding",),
        lambda site: any(site.node.attributes.get_ints("output_padding", ())),
    ),
    "no-asymmetric": Requirement(
        ("symmetric_pads",), lambda site: any(begin != end for begin, end in _pads(site))
    ),
    "npu": Requirement(("normalise", "replace_deconv", "sub_pixel"), lambda _: True),
}
"""Name -> what it asks for, in the order in which the passes run."""

_SETS: dict[str, tuple[str, ...]] = {
    "plain": tuple(name for name in REQUIREMENTS if name != "npu"),
}


@dataclass(frozen=True, slots=True)
class Obeyed:
    """What became of a model: the steps, and the nodes that still break a requirement, and why."""

    steps: tuple[Step, ...]
    left: tuple[str, ...]


def requirements(profile: str) -> tuple[str, ...]:
    """The names of the requirements in a profile, which may be several, parted by commas.

    >>> requirements("no-1d,no-groups")
    ('no-1d', 'no-groups')
    """
    wanted = [
        one for name in profile.split(",") for one in _SETS.get(name.strip(), (name.strip(),))
    ]
    for name in wanted:
        if name not in REQUIREMENTS:
            known = ", ".join((*_SETS, *REQUIREMENTS))
            raise ArgumentError("profile", brief(profile), f"one or more of {known}")
    return tuple(name for name in REQUIREMENTS if name in wanted)


def obey(model: ir.Model, profile: str, rule: Rule) -> Obeyed:
    """Rewrite `model`, which is changed, until nothing breaks the profile that can be helped."""
    wanted = requirements(profile)
    passes = list(dict.fromkeys(name for one in wanted for name in REQUIREMENTS[one].passes))
    steps = [step for name in passes for step in run(model, [PASSES[name]], rule=rule)]
    left = [
        _told(found, name, steps)
        for found in conv_transpose_nodes(model, rule)
        for name in wanted
        if isinstance(found, Unreadable) or REQUIREMENTS[name].broken_by(found)
    ]
    return Obeyed(tuple(steps), tuple(dict.fromkeys(left)))


def _told(found: ConvTransposeNode | Unreadable, requirement: str, steps: Sequence[Step]) -> str:
    if isinstance(found, Unreadable):
        return f"{found.node.name}: {found.reason}"
    reasons = [
        step.refusal
        for step in steps
        if step.node == found.name and step.by in REQUIREMENTS[requirement].passes and step.refusal
    ]
    return f"{found.name}: {'; '.join(reasons) or f'{requirement} is not met'}"
