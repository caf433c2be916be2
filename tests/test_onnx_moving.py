"""Zeros and neighbours however a model writes them: what moves elements is run to see where to."""

from __future__ import annotations

import io
import warnings

import numpy as np
import pytest

pytest.importorskip("onnx", reason="the models are ONNX's")
pytest.importorskip("onnx_ir", reason="upconv.onnx needs it")
pytest.importorskip("onnxruntime", reason="values are compared in ONNX Runtime")

import onnx

from onnx_rewriting import assert_same_values
from onnx_texts import normal, parsed
from test_onnx_recognise import equivalent, floats, ints, only, raised
from upconv.onnx.recognising import Kind, recognise

SHAPE = "1,4,5,7"
PLACES = np.stack(np.meshgrid(*map(np.arange, (1, 4)), np.arange(5) * 2, np.arange(7) * 3,
                              indexing="ij"), -1)  # fmt: skip
ROWS = np.arange(5)[:, None] * 2

MOVED = {
    "ScatterND of every element": (
        "z = ConstantOfShape(wide) r = ScatterND(z, places, x)",
        {"wide": ints(1, 4, 10, 21), "places": PLACES},
        Kind.ZEROS,
    ),
    "ScatterND between transpositions": (
        """t = Transpose<perm=[2,1,0,3]>(x) z = ConstantOfShape(wide) s = ScatterND(z, rows, t)
        r = Transpose<perm=[2,1,0,3]>(s)""",
        {"wide": ints(10, 4, 1, 7), "rows": ROWS},
        Kind.ZEROS,
    ),
    "places that are computed": (
        """n = Shape(x) h = Gather(n, two) z = ConstantOfShape(wide) i = Range(zero, h, one)
        j = Mul(i, two) k = Unsqueeze(j, last) t = Transpose<perm=[2,1,0,3]>(x)
        s = ScatterND(z, k, t) r = Transpose<perm=[2,1,0,3]>(s)""",
        {"wide": ints(10, 4, 1, 7), "two": np.int64(2), "zero": np.int64(0), "one": np.int64(1),
         "last": ints(1)},
        Kind.ZEROS,
    ),
    "ScatterElements": (
        "z = ConstantOfShape(wide) r = ScatterElements<axis=2>(z, at, x)",
        {"wide": ints(1, 4, 10, 7),
         "at": np.broadcast_to(np.arange(5)[:, None] * 2, (1, 4, 5, 7)).copy()},
        Kind.ZEROS,
    ),
    "Concat with zeros": (
        """z = ConstantOfShape(one) u = Unsqueeze(x, axis) v1 = Unsqueeze(x, axis)
        w1 = Mul(v1, nil) c = Concat<axis=4>(u, z) r = Reshape(c, all)""",
        {"one": ints(1, 4, 5, 7, 1), "axis": ints(4), "all": ints(1, 4, 5, 14), "nil": floats(0)},
        Kind.ZEROS,
    ),
    "zeros first": (
        """z = ConstantOfShape(one) u = Unsqueeze(x, axis) c = Concat<axis=4>(z, u)
        r = Reshape(c, all)""",
        {"one": ints(1, 4, 5, 7, 1), "axis": ints(4), "all": ints(1, 4, 5, 14)},
        Kind.ZEROS,
    ),
    "Pad of another kind": (
        "u = Unsqueeze(x, axes) p = Pad(u, pads) r = Reshape(p, all)",
        {"axes": ints(3), "pads": ints(0, 0, 0, 1, 0, 0, 0, 0, 1, 0), "all": ints(1, 4, 15, 7)},
        Kind.ZEROS,
    ),
    "Expand": (
        "u = Unsqueeze(x, axes) e = Expand(u, wide) r = Reshape(e, all)",
        {"axes": ints(3, 5), "wide": ints(1, 4, 5, 2, 7, 3), "all": ints(1, 4, 10, 21)},
        Kind.NEAREST,
    ),
    "Tile": (
        "u = Unsqueeze(x, axes) e = Tile(u, times) r = Reshape(e, all)",
        {"axes": ints(3), "times": ints(1, 1, 1, 2, 1), "all": ints(1, 4, 10, 7)},
        Kind.NEAREST,
    ),
    "Gather": (
        "r = Gather<axis=2>(x, each)",
        {"each": np.repeat(np.arange(5), 2)},
        Kind.NEAREST,
    ),
}  # fmt: skip


@pytest.mark.parametrize("form", MOVED)
def test_what_moves_elements_is_seen_through(form: str) -> None:
    before, arrays, kind = MOVED[form]
    model = raised(before, shape=SHAPE, **arrays)
    found = only(model)
    assert (found.kind, found.x, found.y) == (kind, "x", "y")
    assert found.saved > 1
    assert_same_values(model, equivalent(model, found))


ONES = "z = ConstantOfShape<value=float[1] {1}>(wide)"
ZEROS = "z = ConstantOfShape(wide)"
NEAR = {
    "a one among the zeros": (ONES, PLACES),
    "elements in another order": (ZEROS, PLACES[:, :, ::-1]),
    "an uneven stride": (ZEROS, PLACES + (PLACES[..., 3:] == 18) * ints(0, 0, 0, 2)),
    "channels exchanged": (ZEROS, PLACES[:, ::-1]),
    "an element over another": (ZEROS, np.where(PLACES == 18, 15, PLACES)),
}


@pytest.mark.parametrize("form", NEAR)
def test_what_is_nearly_so_is_not_reported(form: str) -> None:
    before, places = NEAR[form]
    arrays = {"wide": ints(1, 4, 10, 21), "places": np.ascontiguousarray(places)}
    assert not recognise(raised(f"{before} r = ScatterND(z, places, x)", shape=SHAPE, **arrays))


@pytest.mark.parametrize(
    ("before", "x"),
    [
        (ZEROS + ' r = ScatterND<reduction="add">(z, places, x)', None),
        (ZEROS + " n = NonZero(x) t = Transpose(n) m = Mul(t, steps) s = Reshape(m, like)"
         " r = ScatterND(z, s, x)", None),
        ("z = Mul(x, x) r = ScatterND(z, places, x)", None),
        (ZEROS + " q = Relu(x) r = ScatterND(z, places, q)", "q"),
        (ZEROS + " q = Cast<to=1>(x) r = ScatterND(z, places, q)", "q"),
        (ZEROS + " h = Slice(x, no, two, two)"
         " q = Concat<axis=2>(h, as_if) r = ScatterND(z, places, q)",
         None),
    ],
)  # fmt: skip
def test_what_depends_on_values_is_not_believed(before: str, x: str | None) -> None:
    """A chain begins behind what computes on elements."""
    numbers = np.arange(1, 141, dtype=np.float32).reshape(1, 4, 5, 7)
    arrays = {
        "wide": ints(1, 4, 10, 21), "places": PLACES, "like": ints(*PLACES.shape),
        "steps": ints(1, 1, 2, 3), "no": ints(0), "two": ints(2), "as_if": numbers[:, :, 2:],
    }  # fmt: skip
    found = recognise(raised(before, shape=SHAPE, **arrays))
    assert [one.x for one in found] == ([] if x is None else [x])


@pytest.mark.parametrize(
    "before",
    [
        "z = ConstantOfShape(huge) r = ScatterND(z, places, x)",
        "z = Expand(x, huge) r = Reshape(z, wide)",
        "z = Tile(x, huge) r = Reshape(z, wide)",
        "i = Range(zero, far, step) r = ScatterND(x, i, x)",
        "p = Pad(x, around) r = Reshape(p, wide)",
    ],
)
def test_no_shape_makes_it_compute_without_end(before: str) -> None:
    arrays = {
        "huge": ints(1, 1 << 20, 1 << 20, 1 << 20), "wide": ints(1, 4, 10, 21), "places": PLACES,
        "zero": np.int64(0), "far": np.int64(1 << 62), "step": np.int64(1),
        "around": ints(0, 0, 0, 0, 0, 0, 1 << 40, 1 << 40),
    }  # fmt: skip
    assert not recognise(raised(before, shape=SHAPE, **arrays))


def test_a_chain_of_thousands_is_given_up() -> None:
    chain = " ".join(f"a{i + 1} = Identity(a{i})" for i in range(3000))
    before = f"a0 = Identity(x) {chain} z = ConstantOfShape(wide) r = ScatterND(z, places, a3000)"
    arrays = {"wide": ints(1, 4, 10, 21), "places": PLACES}
    assert not recognise(raised(before, shape=SHAPE, **arrays))


def test_sizes_that_are_open_are_not_guessed() -> None:
    before, arrays, _ = MOVED["Expand"]
    assert not recognise(raised(before, shape="N,4,H,W", **arrays))


@pytest.mark.parametrize("size", [-1, -7, 1 << 62])
@pytest.mark.parametrize("before", ["n = Shape(a)", "n = Shape(a) m = Identity(n)"])
def test_sizes_that_cannot_be_are_not_believed(before: str, size: int) -> None:
    """A model can declare any; Shape is folded from what is declared."""
    model = raised(f"a = Relu(x) {before} r = Reshape(x, n)", shape=SHAPE)
    sizes = onnx.helper.make_tensor_value_info("a", onnx.TensorProto.FLOAT, [1, 4, 5, size])
    model.graph.value_info.append(sizes)
    assert not recognise(model)


class TestExports:
    """What PyTorch's exporters write."""

    @pytest.mark.parametrize("dynamo", [False, True])
    @pytest.mark.parametrize(("first", "kind"), [(0, "slice"), (1, "slice"), (0, "stack")])
    def test_zeros_put_between_in_python(self, dynamo: bool, first: int, kind: str) -> None:
        torch = pytest.importorskip("torch", reason="models are exported from it")
        if dynamo:
            pytest.importorskip("onnxscript", reason="PyTorch's exporter needs it")

        class Raised(torch.nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.conv = torch.nn.Conv2d(4, 3, 3, padding=1)

            def forward(self, x):
                n, c, h, w = x.shape
                if kind == "stack":
                    return self.conv(torch.stack([x, torch.zeros_like(x)], 3).reshape(n, c, -1, w))
                y = x.new_zeros(n, c, 2 * h, 2 * w)
                y[:, :, first::2, first::2] = x
                return self.conv(y)

        module, x = Raised().eval(), torch.from_numpy(normal(3, 1, 4, 5, 6))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            if dynamo:
                model = torch.onnx.export(module, (x,), dynamo=True, verbose=False).model_proto
            else:
                file = io.BytesIO()
                torch.onnx.export(module, (x,), file, dynamo=False)
                model = onnx.load_model_from_string(file.getvalue())
        found = only(model)
        assert found.kind is Kind.ZEROS
        assert_same_values(model, equivalent(model, found))


def test_parsed_models_are_what_they_seem() -> None:
    """The cases above compute what their names say."""
    before, arrays, _ = MOVED["ScatterND of every element"]
    text = f"g (float[{SHAPE}] x) => (float[A,B,C,D] r) {{ {before} }}"
    import onnxruntime

    x = normal(5, 1, 4, 5, 7)
    wanted = np.zeros((1, 4, 10, 21), np.float32)
    wanted[:, :, ::2, ::3] = x
    model = parsed(text, 17, **arrays).SerializeToString()
    session = onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"])
    np.testing.assert_array_equal(session.run(None, {"x": x})[0], wanted)
