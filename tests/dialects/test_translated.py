"""Translations there and back, to what is nearest, and of arrays: random layers."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.layer_oracle import layers
from upconv import conv_transpose
from upconv.dialects import DIALECTS, Layer, Verdict, translate
from upconv.errors import TranslationError
from upconv.geometry import Axis

LAYERS = layers(most=(5, 4, 3, 2), begin=(-2, 3), end=(-2, 3), groups=2)
ROUTES = list(product(DIALECTS, DIALECTS))


@settings(max_examples=60)
@given(layer=LAYERS, sized=st.booleans())
def test_there_and_back_is_the_same_layer(layer, sized):
    """From every dialect that can say the layer, to every other and back."""
    size = tuple(axis.size for axis in layer.axes)
    for source, target in ROUTES:
        try:
            config = DIALECTS[source].write(layer)
        except TranslationError:
            continue
        extra = {"input_size": size} if sized else {}
        there = translate({**config, **extra}, source, target)
        if there.verdict is Verdict.EXACT:
            back = translate({**there.config, **extra}, target, source)
            assert back.verdict is Verdict.EXACT
            assert DIALECTS[source].read(size, **back.config).axes == layer.axes
        elif there.nearest is not None:
            DIALECTS[target].read((64,) * len(size), **there.nearest)


@settings(max_examples=40)
@given(layer=LAYERS)
def test_nearest_is_no_farther_than_its_neighbours(layer):
    """No legal layer lies nearer than the nearest one: all are tried, on one axis."""
    first = layer.axes[0]
    one = Layer((Axis(99, first.kernel, first.stride, first.dilation, *layer.crops[0]),))
    for dialect in DIALECTS.values():
        try:
            closest = dialect.nearest(one)
            dialect.write(closest)
        except TranslationError:
            continue
        distance = sum(abs(a - b) for a, b in zip(one.crops[0], closest.crops[0], strict=True))
        for p, q in product(range(-distance, distance + 1), repeat=2):
            if abs(p) + abs(q) < distance:
                begin, end = one.crops[0][0] + p, one.crops[0][1] + q
                nearer = Axis(99, first.kernel, first.stride, first.dilation, begin, end)
                with pytest.raises(TranslationError):
                    dialect.write(Layer((nearer,)))


@settings(max_examples=40)
@given(layer=LAYERS, seed=st.integers(0, 99))
def test_translated_arrays_compute_the_same_numbers(layer, seed):
    """Weights and data moved as told give the source's result, in every pair of dialects."""
    rng, size = np.random.default_rng(seed), tuple(axis.size for axis in layer.axes)
    for source, target in ROUTES:
        try:
            config = DIALECTS[source].write(layer)
        except TranslationError:
            continue
        found = translate({**config, "input_size": size}, source, target)
        if found.verdict is Verdict.IMPOSSIBLE:
            continue
        ours, theirs = (
            DIALECTS[name].read(size, **attributes)
            for name, attributes in ((source, config), (target, found.config))
        )
        groups = layer.groups
        x = rng.integers(-9, 9, ours.layout.shape(2, 2 * groups, size)).astype(float)
        w = rng.integers(-9, 9, ours.weight_layout.shape(2 * groups, 3, ours.kernel)).astype(float)
        y = conv_transpose(x, ours.weight(w), **ours.keywords(), engine="reference")
        moved = w.transpose(found.weight_permutation or tuple(range(w.ndim)))
        moved = np.flip(moved, found.weight_reversed) if found.weight_reversed else moved
        there, back = (each.layout.to_ncx(len(size)) for each in (ours, theirs))
        x = x.transpose(there).transpose(np.argsort(back))
        z = conv_transpose(x, theirs.weight(moved), **theirs.keywords(), engine="reference")
        assert np.array_equal(y.transpose(there), z.transpose(back))
