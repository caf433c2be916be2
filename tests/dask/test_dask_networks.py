"""Networks on volumes in chunks: the bits of the whole, exact halos, errors at once."""

import pickle
import random
from typing import Any

import numpy as np
import pytest

import upconv
from tests.support import random_networks
from tests.support.repeating import seeds
from upconv.network import Network

da = pytest.importorskip("dask.array", reason="needs Dask")
dask = pytest.importorskip("dask")
lazy = pytest.importorskip("upconv.dask")


def weight(*shape: int) -> np.ndarray:
    normal = np.random.default_rng(shape).standard_normal(shape)
    return (normal / np.prod(shape[1:]) ** 0.5).astype(np.float32)


def unet() -> Network:
    """Two levels, with a skip, a dilated residual, and reflected positions around the result."""
    network = Network({"image": (None, 3, None, None)})
    a = network.conv(network.inputs["image"], weight(8, 3, 3, 3), padding=1, activation="relu")
    b = network.conv(network.max_pool(a, 2), weight(16, 8, 3, 3), padding=1)
    c = network.conv(b, weight(16, 16, 3, 3), padding=2, dilation=2, activation="silu") + b
    up = network.conv_transpose(c, weight(16, 8, 4, 4), stride=2, padding=1)
    y = network.conv(network.concat(a, up), weight(4, 16, 3, 3), padding=1)
    network.output(y, network.pad(y, ((3, 2), (4, 1)), "reflect"))
    return network


def computed(result: Any) -> np.ndarray:
    with dask.config.set(scheduler="synchronous"):
        return result.compute()


def test_any_chunks_have_the_bits_of_the_whole() -> None:
    network = unet()
    x = np.random.default_rng(0).standard_normal((2, 3, 50, 64)).astype(np.float32)
    whole = network.compile({"image": x.shape}, algorithm="direct").run(x)
    for chunks in (1, 3, 16, 20), (2, 2, (7, 43), (1, 2, 3, 58)), (2, 1, 5, 64):
        results = lazy.run(network, da.from_array(x, chunks))
        for result, expected in zip(results, whole, strict=True):
            assert computed(result).tobytes() == expected.tobytes()
    fast = lazy.run(network, da.from_array(x, chunks), algorithm="auto", chunks=(30, 32))[0]
    assert fast.chunks[2:] == ((30, 20), (32, 32))
    np.testing.assert_allclose(computed(fast), whole[0], rtol=0, atol=1e-4)


def cut(rng: random.Random, total: int) -> tuple[int, ...]:
    sizes: list[int] = []
    while sum(sizes) < total:
        rest = total - sum(sizes)
        sizes.append(rng.randint(min(rest, 1 + total // 3), rest))
    return tuple(sizes)


def check(seed: int) -> bool:
    """One random network in random chunks; whether it can be cut."""
    case, rng = random_networks.case(seed, nodes=12), random.Random(seed)
    batches = {shape[0] for shape in case.inputs.values()}
    if len(batches) > 1:
        return False
    network, arrays = case.network(), case.arrays()
    shapes = dict(case.inputs)
    whole = network.compile(shapes, algorithm="direct").run(*arrays)
    batch = cut(rng, arrays[0].shape[0])
    volumes = [da.from_array(x, (batch, *(cut(rng, n) for n in x.shape[1:]))) for x in arrays]
    try:
        results = lazy.run(network, *volumes)
    except upconv.EngineRefusal:
        return False
    pairs = zip(*((y if isinstance(y, tuple) else (y,)) for y in (results, whole)), strict=True)
    averages = "avg_pool", "layer_norm", "upsample", "softmax", "channel_pool", "resize"
    exact = not any(name in averages for name, *_ in case.calls)
    bounds = random_networks.expected(case.graph(), arrays, 2.0**-22)
    for (result, expected), (_, bound) in zip(pairs, bounds, strict=True):
        value = computed(result)
        if exact:
            assert value.tobytes() == expected.tobytes(), case
        if bound == np.inf:  # rounding may change everything
            continue
        np.testing.assert_allclose(
            value, expected, rtol=0, atol=4 * bound + 1e-5, err_msg=str(case)
        )
    return True


def test_random_networks_in_random_chunks() -> None:
    assert sum(map(check, seeds(6))) > 0


@pytest.mark.long
def test_many_random_networks_in_random_chunks() -> None:
    assert sum(map(check, range(6, 1500))) > 300


def test_what_reads_all_positions_takes_one_chunk() -> None:
    network = Network({"image": (None, 4, None, None)})
    network.output(network.instance_norm(network.inputs["image"]))
    x = np.random.default_rng(0).standard_normal((2, 4, 9, 8)).astype(np.float32)
    whole = network.compile({"image": x.shape}).run(x)
    batches = lazy.run(network, da.from_array(x, (1, 4, 9, 8)))
    assert computed(batches).tobytes() == whole.tobytes()
    with pytest.raises(upconv.EngineRefusal, match=r"norm at .*test_dask_networks.py:\d+ cannot"):
        lazy.run(network, da.from_array(x, (1, 4, 3, 8)))


def test_nothing_is_computed_before_its_time_and_only_what_is_needed() -> None:
    broken = da.from_delayed(dask.delayed(lambda: 1 / 0)(), (1, 3, 20, 40), np.float32)
    x = da.concatenate([da.ones((1, 3, 40, 40), dtype=np.float32), broken], axis=2)
    y = lazy.run(unet(), x.rechunk((1, 3, 20, 40)))[0]
    assert computed(y.blocks[0, 0, 0]).shape == (1, 4, 20, 40)
    with pytest.raises(ZeroDivisionError):
        computed(y.blocks[0, 0, 1])


def test_programs_can_be_pickled() -> None:
    x = np.random.default_rng(0).standard_normal((2, 3, 50, 64)).astype(np.float32)
    programs = unet().boxes({"image": x.shape})
    again = pickle.loads(pickle.dumps(programs))
    assert again.digest == programs.digest
    part = again.boxes.part(again.boxes.graph.outputs[0], ((0, 50), (0, 64)), 2)
    whole = unet().compile({"image": x.shape}, algorithm="direct").run(x)[0]
    assert again.program(part).run(x).tobytes() == whole.tobytes()


def test_arguments_are_refused_at_once() -> None:
    x = da.ones((1, 3, 50, 64), dtype=np.float32)
    with pytest.raises(upconv.DTypeError, match="network is a str"):
        lazy.run("unet", x)
    with pytest.raises(upconv.ArgumentError, match="the number of arrays is 2; expected 1: image"):
        lazy.run(unet(), x, x)
    with pytest.raises(upconv.DTypeError, match=r"image.dtype is float64"):
        lazy.run(unet(), x.astype(float))
    with pytest.raises(upconv.DTypeError, match="image is of type ndarray"):
        lazy.run(unet(), np.ones((1, 3, 50, 64), np.float32))
    with pytest.raises(upconv.ShapeError, match="concat at"):
        lazy.run(unet(), x[:, :, :49])
    with pytest.raises(upconv.ArgumentError, match="precision is 'float16'"):
        lazy.run(unet(), x, precision="float16")
    with pytest.raises(upconv.ArgumentError, match=r"chunks is .*Dask says"):
        lazy.run(unet(), x, chunks=((3, 4),))
