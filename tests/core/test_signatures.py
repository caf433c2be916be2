"""The types of public signatures name the values that the library accepts."""

import inspect
from typing import get_args

import pytest

import upconv
from upconv import signatures
from upconv.engine_choice import Algorithm
from upconv.gradients import NEEDS
from upconv.keywords import Same
from upconv.problem import TF32, DataLayout, DType, WeightLayout

TYPES = {
    "layout": "Layout",
    "weight_layout": "WeightOrder",
    "algorithm": "AlgorithmName",
    "stride": "Sizes",
    "dilation": "Sizes",
    "padding": "Padding",
}
FUNCTIONS = [getattr(upconv, name) for name in upconv.__all__]
FUNCTIONS = [f for f in FUNCTIONS if inspect.isfunction(f)]


def test_the_values_are_the_librarys() -> None:
    def values(kind):
        return {member.value for member in kind}

    assert set(get_args(signatures.Layout)) == values(DataLayout)
    assert set(get_args(signatures.WeightOrder)) == values(WeightLayout)
    assert set(get_args(signatures.AlgorithmName)) == values(Algorithm)
    assert set(get_args(signatures.PrecisionName)) == {*values(DType), TF32}
    assert get_args(signatures.GradientName) == NEEDS
    rules = next(kind for kind in get_args(signatures.Padding) if get_args(kind)[:1] == ("valid",))
    assert set(get_args(rules)) == {"valid", *values(Same)}


@pytest.mark.parametrize("function", FUNCTIONS, ids=lambda f: f.__name__)
def test_every_public_function_states_them(function) -> None:
    for name, parameter in inspect.signature(function).parameters.items():
        if name in TYPES:
            assert str(parameter.annotation).removesuffix(" | None") == TYPES[name], name
