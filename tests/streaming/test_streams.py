"""Streams: for any cut into chunks, the bits of the whole; as early as they are settled; states."""

from __future__ import annotations

from collections.abc import Callable
from functools import reduce
from itertools import cycle
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

import upconv
from tests.support.stream_cases import Case, cases, cut, intruded, same_bits, streamed
from upconv.network import Network
from upconv.problem import DType
from upconv.stream_progress import Progress
from upconv.streaming import Stream, chain

CUTS = st.lists(st.integers(0, 9), max_size=8)
MOVES: tuple[Callable[[Stream, Case], Stream], ...] = (
    lambda stream, _: stream.copy(),
    lambda stream, _: stream.from_bytes(stream.to_bytes()),
    lambda stream, case: case.stream().from_bytes(stream.to_bytes()),
)
"""Ways in which a stream goes on as another one."""


def whole_or_none(case: Case, engine: Any) -> np.ndarray | None:
    try:
        return case.whole(engine)
    except upconv.ShapeError:
        return None


@settings(max_examples=90)
@given(cases(), CUTS)
def test_chunks_together_have_the_bits_of_the_whole(case: Case, sizes: list[int]) -> None:
    stream = case.stream()
    whole, chunks = whole_or_none(case, stream.engine), cut(case.arrays()[0], case.axis, sizes)
    if whole is None:
        with pytest.raises(upconv.ShapeError):
            streamed(stream, chunks, case.axis)
        return
    assert same_bits(streamed(stream, chunks, case.axis), whole)
    stream.reset()
    parts = []
    for chunk, moved in zip(chunks, cycle(MOVES), strict=False):
        parts.append(stream.push(chunk))
        before, stream = stream, moved(stream, case)
        before.push(chunk)  # of no effect on the other stream
    assert same_bits(np.concatenate([*parts, stream.finish()], case.axis), whole)


@settings(max_examples=60)
@given(cases(), CUTS)
def test_every_result_comes_as_soon_as_it_is_settled(case: Case, sizes: list[int]) -> None:
    """What was pushed decides what was returned, and no more could have been."""
    stream = case.stream()
    x = case.arrays()[0]
    assume(x.size)
    chunks = cut(x, case.axis, sizes)
    returned = sum(stream.push(chunk).shape[case.axis] for chunk in chunks)
    assert returned == stream.progress.final(case.size)
    progress, futures = stream.progress, set()
    for longer in range(12):
        try:
            futures.add(progress.total(case.size + longer))
        except upconv.ShapeError:
            assume(longer)  # what may not end here has no results that end here
    assert returned <= min(futures)
    if returned < min(futures):  # a result that comes in any case: it must read a later input
        assert _reads(progress, returned) >= case.size


def _reads(progress: Progress, result: int) -> int:
    """The last input a result may read, were the input endless."""
    if progress.convolves:
        return progress.stride * result + progress.extent - 1 - progress.begin
    return (result + progress.begin) // progress.stride


REAL = {
    "HiFi-GAN, first": ((512, 256, 16), {"stride": 8, "padding": 4}),
    "HiFi-GAN, third": ((128, 64, 4), {"stride": 2, "padding": 1}),
    "EnCodec, first": ((512, 256, 16), {"stride": 8, "padding": ((0, 8),)}),
    "EnCodec, third": ((128, 64, 8), {"stride": 4, "padding": ((0, 4),)}),
}


@pytest.mark.parametrize("name", REAL)
@pytest.mark.parametrize("length", [1, 4096])
def test_real_layers(name: str, length: int) -> None:
    """And with what audio may hold: silence, infinity, NaN."""
    shape, keywords = REAL[name]
    rng = np.random.default_rng(1)
    x = rng.standard_normal((1, shape[0], 90), np.float32)
    x[..., 10:15], x[0, 3, 40], x[0, 5, 60] = 0, np.inf, np.nan
    w = rng.standard_normal(shape, np.float32)
    stream = upconv.stream(w, length=length, **keywords)
    y = streamed(stream, cut(x, -1, [2, 2, 2, 2, 7, 7, 30, 1]), -1)
    assert same_bits(y, upconv.conv_transpose(x, w, engine=stream.engine, **keywords))


def test_a_length_whose_result_is_reached_by_nothing_names_a_kernel_too() -> None:
    """Output 0 of stride 2, dilation 2 and padding 1 lies between all taps."""
    rng = np.random.default_rng(0)
    x, w = rng.standard_normal((17, 12), np.float32), rng.standard_normal((17, 5, 3), np.float32)
    keywords: dict[str, Any] = {"stride": 2, "dilation": 2, "padding": ((1, 0),)}
    stream = upconv.stream(w, length=1, **keywords)
    assert stream.engine.sums
    whole = upconv.conv_transpose(x, w, engine=stream.engine, **keywords)
    assert same_bits(streamed(stream, [x], -1), whole)


def test_the_whole_by_its_own_choice_has_these_bits_where_the_length_says_so() -> None:
    """The default `length` and a whole call of thousands, a small one and a call of few."""
    rng = np.random.default_rng(2)
    for shape, stride in (((32, 16, 4), 2), ((8, 40, 3), 1)):
        w = rng.standard_normal(shape, np.float32)
        for length in (20, 5000):
            x = rng.standard_normal((1, shape[0], length), np.float32)
            stream = upconv.stream(w, stride=stride, length=length)
            y = streamed(stream, cut(x, -1, [length // 3]), -1)
            assert same_bits(y, upconv.conv_transpose(x, w, stride=stride, engine="jit"))


@settings(max_examples=60)
@given(cases(), CUTS)
def test_what_the_jit_refuses_has_the_bits_of_the_whole_too(case: Case, sizes: list[int]) -> None:
    """Weights with infinity or NaN; finite ones beside the reference engine."""
    x, w, bias = case.arrays()
    call = upconv.conv if case.convolves else upconv.conv_transpose
    make = upconv.conv_stream if case.convolves else upconv.stream
    broken = w.copy()
    broken.reshape(-1)[::3], broken.reshape(-1)[1::5] = np.inf, np.nan
    stream = make(broken, bias, **case.keywords)
    assert stream.engine.name == "ordered"
    try:
        whole = call(x, broken, bias, engine=stream.engine, **case.keywords)
    except upconv.ShapeError:
        return
    assert same_bits(streamed(stream, cut(x, case.axis, sizes), case.axis), whole)
    found, expected = (
        call(x, w, bias, engine=engine, **case.keywords).astype(np.float64)
        for engine in (stream.engine, "reference")
    )
    epsilon = DType(case.dtype).epsilon
    np.testing.assert_allclose(found, expected, rtol=8 * epsilon, atol=1000 * epsilon)


def test_a_filter_of_many_taps() -> None:
    """More than the JIT makes tables for."""
    rng = np.random.default_rng(0)
    w, x = rng.standard_normal((1, 1, 301)), rng.standard_normal((1, 1, 700))
    stream = upconv.stream(w, padding=150)
    y = streamed(stream, cut(x, -1, [100, 1, 350]), -1)
    assert same_bits(y, upconv.conv_transpose(x, w, padding=150, engine=stream.engine))
    np.testing.assert_allclose(y, upconv.conv_transpose(x, w, padding=150), rtol=0, atol=1e-12)
    assert stream.copy().engine is stream.engine


# How late ---------------------------------------------------------------------------------------


def test_latency_and_lookahead_are_told() -> None:
    w = np.ones((1, 1, 16), np.float32)
    centred, causal = (upconv.stream(w, stride=8, padding=p) for p in (4, ((0, 8),)))
    assert (centred.latency, centred.lookahead) == (4, 1)
    assert (causal.latency, causal.lookahead) == (0, 0)
    wide = upconv.conv_stream(np.ones((1, 1, 7), np.float32), dilation=3, padding=9)
    assert (wide.latency, wide.lookahead) == (9, 9)
    same = upconv.conv_stream(np.ones((1, 1, 7), np.float32), dilation=3, padding="same_upper")
    assert same.progress == wide.progress
    ahead = upconv.conv_stream(np.ones((1, 1, 3), np.float32), padding=((5, -3),))
    assert (ahead.latency, ahead.lookahead) == (0, 0)


@settings(max_examples=30)
@given(st.lists(cases(), min_size=1, max_size=3))
def test_the_latency_of_a_chain_is_what_is_missing_at_most(layers: list[Case]) -> None:
    assume(np.prod([case.keywords["stride"] for case in layers]) <= 40)
    streams = []
    for case in layers:
        keys = ("stride", "dilation", "padding")
        make = upconv.conv_stream if case.convolves else upconv.stream
        weight = np.ones((1, 1, case.kernel), np.float32)
        streams.append(make(weight, **{key: case.keywords[key] for key in keys}))
    whole = chain(*streams)

    def final(taken: int) -> int:
        return reduce(lambda count, stream: stream.progress.final(count), streams, taken)

    def takes(results: int) -> int:
        return reduce(lambda count, stream: stream.progress.takes(count), streams[::-1], results)

    far, rate = 120**3 * 100, whole.rate
    behind = max(rate * t - final(t) for t in range(far, far + 80))
    assert whole.latency == -(-behind.numerator // behind.denominator)
    assert whole.lookahead == max(takes(o + 1) - 1 - o // rate for o in range(far, far + 400))


# Refusals ---------------------------------------------------------------------------------------


def test_bad_arguments_are_refused_in_words() -> None:
    w = np.ones((2, 3, 4), np.float32)
    with pytest.raises(upconv.ShapeError, match=r"weight.shape is .*expected 3 axes"):
        upconv.stream(np.ones((2, 3, 4, 4)))
    with pytest.raises(upconv.ArgumentError, match="stride is 0"):
        upconv.stream(w, stride=0)
    with pytest.raises(upconv.ArgumentError, match="length is 0"):
        upconv.stream(w, length=0)
    with pytest.raises(upconv.ArgumentError, match="groups is 'two'"):
        upconv.conv_stream(w, groups="two")
    with pytest.raises(upconv.ArgumentError, match=r"padding is 'same_upper'.*stride above 1"):
        upconv.conv_stream(w, stride=2, padding="same_upper")
    with pytest.raises(upconv.ShapeError, match=r"bias.shape"):
        upconv.stream(w, np.ones(5, np.float32))


def test_bad_chunks_are_refused_and_change_nothing() -> None:
    stream = upconv.stream(np.ones((2, 3, 4), np.float32))
    with pytest.raises(upconv.ArgumentError, match="the stream is empty"):
        stream.finish()
    good = np.ones((1, 2, 5), np.float32)
    first = stream.push(good)
    for bad, error, match in (
        (good.astype(np.float64), upconv.DTypeError, "chunk.dtype is float64"),
        (good[0], upconv.ShapeError, r"chunk.shape is \(2, 5\); expected \(1, 2, n\)"),
        (np.ones((2, 2, 5), np.float32), upconv.ShapeError, "chunk.shape"),
        (np.ones((1, 3, 5), np.float32), upconv.ShapeError, "chunk.shape"),
        (np.float32(3), upconv.ShapeError, "chunk.shape"),
        ([1.0], upconv.DTypeError, "chunk"),
    ):
        with pytest.raises(error, match=match):
            stream.push(bad)
    assert stream.taken == 5
    rest = stream.finish()
    assert first.shape[-1] + rest.shape[-1] == 8
    with pytest.raises(upconv.EngineError, match="finished"):
        stream.push(good)
    stream.reset()
    assert same_bits(stream.push(good), first)


def test_damaged_states_are_refused() -> None:
    stream = upconv.stream(np.ones((2, 3, 4), np.float32))
    stream.push(np.ones((1, 2, 5), np.float32))
    state = stream.to_bytes()
    for i in range(0, len(state), 7):
        with pytest.raises(upconv.ArgumentError, match="data is"):
            stream.from_bytes(state[:i])
        with pytest.raises(upconv.ArgumentError, match="data is"):
            stream.from_bytes(state[:i] + bytes([state[i] ^ 1]) + state[i + 1 :])
    with pytest.raises(upconv.ArgumentError, match="other weights or geometry"):
        upconv.stream(np.full((2, 3, 4), 2, np.float32)).from_bytes(state)
    with pytest.raises(upconv.DTypeError, match="data is a str"):
        stream.from_bytes("no")  # type: ignore[arg-type]


def test_a_stream_keeps_the_weight_it_was_made_with() -> None:
    w, x = np.ones((1, 1, 3), np.float32), np.ones((1, 1, 4), np.float32)
    stream = upconv.stream(w)
    w[...] = 5
    assert stream.push(x)[0, 0, 0] == 1


@pytest.mark.parametrize("kind", ["layer", "chain", "network"])
def test_a_second_thread_is_refused_and_the_first_goes_on(kind: str) -> None:
    """Two threads in one stream ended the process, or lost samples."""
    weight, chunk = np.ones((1, 1, 3), np.float32), np.ones((1, 1, 4), np.float32)
    layer, network = upconv.conv_stream(weight, padding=1), Network({"x": (1, 1, None)})
    network.output(network.conv(network.inputs["x"], weight, padding=1))
    stream: Any = {"layer": layer, "chain": chain(layer), "network": network.stream()}[kind]
    others = stream.finish, stream.copy, stream.reset, stream.to_bytes
    assert intruded(stream, chunk, lambda: stream.push(chunk), *others).shape[-1] == 3
    assert stream.push(chunk).shape[-1] == 4
