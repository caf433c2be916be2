"""Models that MXNet saved: loaded, run, written as ONNX; and files nobody vouches for.

What MXNet itself computed is stored beside each model (tests/data/mxnet/make_models.py).
"""

import json
import random
import re
from contextlib import suppress

import numpy as np
import pytest

import upconv.mxnet as mx
from tests.support.paths import DATA
from tests.support.repeating import seeds
from upconv.errors import EngineMissing, ModelError, UpconvError
from upconv.installation import install_command
from upconv.mxnet import symbol
from upconv.mxnet.model import Model, load
from upconv.mxnet.params import read_params

FOLDER = DATA / "mxnet" / "models"
NAMES = sorted(path.stem for path in FOLDER.glob("*.npz"))


def files(name):
    return FOLDER / f"{name}-symbol.json", FOLDER / f"{name}-0000.params"


def stored(name):
    """A model, its inputs and what MXNet computed of them."""
    model = load(*files(name))
    with np.load(FOLDER / f"{name}.npz") as arrays:
        inputs = {key: arrays[key] for key in model.inputs}
        return model, inputs, [arrays[f"out{i}"] for i in range(len(model.outputs))]


def assert_close(found, expected):
    assert len(found) == len(expected)
    for y, z in zip(found, expected, strict=True):
        assert y.shape == z.shape
        assert y.dtype == z.dtype
        assert np.abs(y - z).max() <= 1e-5 * np.abs(z).max()


class TestStoredModels:
    def test_are_there(self):
        assert {"dcgan", "fcn", "unet", "gluon", "gluon2", "gluon_np", "vocoder"} <= {*NAMES}

    @pytest.mark.parametrize("name", NAMES)
    def test_compute_what_mxnet_computed(self, name):
        model, inputs, expected = stored(name)
        before = {key: array.copy() for key, array in model.arrays.items()}
        for _ in range(2):
            assert_close(model.run(**inputs), expected)
        for key, array in before.items():
            np.testing.assert_array_equal(model.arrays[key], array)

    @pytest.mark.parametrize("opset", [17, 21])
    @pytest.mark.parametrize("name", NAMES)
    def test_compute_the_same_as_onnx(self, name, opset, tmp_path):
        pytest.importorskip("onnx", reason="models are written by onnx")
        runtime = pytest.importorskip("onnxruntime", reason="they are run by ONNX Runtime")
        from upconv.mxnet.to_onnx import to_onnx

        model, inputs, expected = stored(name)
        shapes = {key: array.shape for key, array in inputs.items()}
        to_onnx(model, shapes, tmp_path / "net.onnx", opset=opset)
        session = runtime.InferenceSession(tmp_path / "net.onnx")
        assert_close(session.run(model.outputs, inputs), expected)

    def test_half_precision_is_kept(self):
        pytest.importorskip("onnxruntime", reason="the model is proven there")
        from upconv.mxnet.to_onnx import to_onnx

        model, inputs, expected = stored("unet")
        half = Model(model.graph, {k: v.astype(np.float16) for k, v in model.arrays.items()})
        [found] = half.run(**inputs)
        assert found.dtype == np.float16
        np.testing.assert_allclose(found, expected[0], atol=0.01)
        to_onnx(half, {"data": inputs["data"].shape})

    def test_names_of_parameters_are_without_their_kind(self):
        model, _, _ = stored("dcgan")
        assert "g0_weight" in model.arrays
        assert "gbn0_moving_mean" in model.arrays
        assert model.inputs == ["noise"]
        assert model.outputs == ["gout_output"]

    def test_labels_are_no_inputs(self):
        model, _, _ = stored("fcn")
        assert "softmax_label" in model.graph.list_arguments()
        assert model.inputs == ["data"]


class TestRunning:
    def test_inputs_are_made_the_type_of_the_parameters(self):
        model, inputs, expected = stored("vocoder")
        assert_close(model.run(mel=inputs["mel"].astype(np.float64).tolist()), expected)

    @pytest.mark.parametrize(
        ("inputs", "says"),
        [
            ({}, "The inputs are none; expected mel."),
            ({"data": 1}, "The inputs are data; expected mel."),
            ({"mel": np.ones((2, 10))}, r"pre \(Convolution\): .*mel \(2, 10\)"),
            ({"mel": np.ones((2, 9, 12))},
             "pre \\(Convolution\\): the shape of weight .*for data of shape \\(2, 9, 12\\)"),
            ({"mel": "text"}, "An input: "),
            ({"mel": [[1], [1, 2]]}, "An input: "),
        ],
    )  # fmt: skip
    def test_other_inputs_are_one_error(self, inputs, says):
        model, _, _ = stored("vocoder")
        with pytest.raises(mx.MXNetError, match=says):
            model.run(**inputs)

    def test_a_missing_parameter_is_named(self):
        arrays = read_params(files("dcgan")[1])
        del arrays["arg:g0_weight"], arrays["aux:gbn1_moving_var"]
        graph = symbol.load(files("dcgan")[0])
        with pytest.raises(mx.MXNetError, match="no g0_weight, gbn1_moving_var"):
            Model(graph, {name.split(":")[1]: array for name, array in arrays.items()})

    def test_a_parameter_of_another_shape_is_named(self):
        model, inputs, _ = stored("dcgan")
        arrays = model.arrays | {"g1_weight": np.ones((3, 3), np.float32)}
        with pytest.raises(mx.MXNetError, match=r"g1 \(Deconvolution\): .*\(3, 3\)"):
            Model(model.graph, arrays).run(**inputs)

    def test_without_parameters_all_are_inputs(self):
        y = mx.sym.Deconvolution(mx.sym.var("x"), kernel=(2,), num_filter=1, name="up")
        model = Model(y, {})
        assert model.inputs == ["x", "up_weight"]
        [found] = model.run(x=[[[1, 2]]], up_weight=[[[1, 10]]])
        np.testing.assert_array_equal(found, [[[1, 12, 20]]])

    def test_fixed_gamma_leaves_arrays_as_they_are(self):
        y = mx.sym.BatchNorm(mx.sym.var("x"), name="bn")
        gamma, one = np.full(2, 5.0, np.float32), np.ones(2, np.float32)
        names = ("bn_gamma", "bn_beta", "bn_moving_mean", "bn_moving_var")
        model = Model(y, dict(zip(names, (gamma, one, one, one), strict=True)))
        [found] = model.run(x=np.ones((1, 2, 3)))
        np.testing.assert_allclose(found, 1)
        assert gamma.tolist() == model.arrays["bn_gamma"].tolist() == [5, 5]
        [found] = Model(y, {}).run(
            **dict.fromkeys(names, one) | {"x": np.ones((1, 2, 3)), "bn_gamma": gamma}
        )
        np.testing.assert_allclose(found, 1)
        assert gamma.tolist() == [5, 5]

    def test_a_result_is_nobody_elses(self):
        model = Model(mx.sym.Group([mx.sym.var("w"), mx.sym.var("x")]), {"w": np.ones(2)})
        w, _ = model.run(x=[1.0])
        w[:] = 7
        assert model.arrays["w"].tolist() == [1, 1]
        assert not model.arrays["w"].flags.writeable

    def test_an_input_may_have_any_name(self):
        [found] = Model(mx.sym.relu(mx.sym.var("self")), {}).run(self=[-1, 2])
        assert found.tolist() == [0, 2]


GRAPH = json.loads((FOLDER / "fcn-symbol.json").read_text())


def read(text):
    """What comes of a text: a graph that may be asked and run, or an error of upconv's."""
    graph = symbol.load_json(text)
    model = Model(graph, {})
    model.run(**{name: np.ones((1, 2, 8, 8), np.float32) for name in model.inputs})


def changed(change):
    graph = json.loads(json.dumps(GRAPH))
    change(graph)
    return json.dumps(graph)


class TestHostileGraphs:
    @pytest.mark.parametrize("text", ["[1, 2]", "3", "null", "{}", '"x"', '{"nodes": []}'])
    def test_a_json_that_is_no_graph(self, text):
        says = "list.json is not an MXNet graph: it is .*; expected an object with nodes and head"
        with pytest.raises(ModelError, match=says) as caught:
            symbol.load_json(text, "list.json")
        assert "Error(" not in str(caught.value)

    @pytest.mark.parametrize("end", [0, 1, 10, 500, -2])
    def test_cut_off(self, end):
        with pytest.raises(ModelError):
            symbol.load_json(json.dumps(GRAPH)[:end])

    @pytest.mark.parametrize(
        "text",
        [
            b"\xff\xfe", '{"nodes": 3, "heads": []}', "NaN",
            '{"nodes": [], "heads": [[0, 0, 0]]}', "[" * 100_000, '{"a":' * 100_000,
            '{"nodes": [3], "heads": []}', '{"nodes": {"op": 1}, "heads": [[0, 0]]}',
            '{"nodes": [{"op": "null", "name": "x", "inputs": []}], "heads": [[0, 7, 0]]}',
            '{"nodes": [{"op": "null", "name": "x", "inputs": []}], "heads": [[-1, 0, 0]]}',
            '{"nodes": [{"op": "null", "name": "x", "inputs": []}], "heads": [[0.5, 0, 0]]}',
            '{"nodes": [{"op": "null", "name": "x", "inputs": []}], "heads": [[1e999, 0, 0]]}',
            '{"nodes": [{"op": "null", "name": "x", "inputs": []}], "heads": []}',
        ],
    )  # fmt: skip
    def test_no_graph(self, text):
        with pytest.raises(UpconvError):
            read(text)

    @pytest.mark.parametrize(
        "change",
        [
            lambda graph: graph["nodes"][3].update(inputs=[[3, 0, 0]]),
            lambda graph: graph["nodes"][3].update(inputs=[[30, 0, 0], [1, 0, 0], [2, 0, 0]]),
            lambda graph: graph["nodes"][3].update(inputs=[[-1, 0, 0], [1, 0, 0], [2, 0, 0]]),
            lambda graph: graph["nodes"][3].update(inputs=[[0, -1, 0], [1, 0, 0], [2, 0, 0]]),
            lambda graph: graph["nodes"][3].update(inputs=[[0, 5, 0], [1, 0, 0], [2, 0, 0]]),
            lambda graph: graph["nodes"][3].update(inputs=[[10**400, 0, 0]] * 3),
            lambda graph: graph["nodes"][3].update(inputs=[["0", 0, 0]] * 3),
            lambda graph: graph["nodes"][3].update(inputs=[[]] * 3),
            lambda graph: graph["nodes"][3].update(inputs=None),
            lambda graph: graph["nodes"][3].update(inputs=[[0, 0, 0]]),
            lambda graph: graph["nodes"][3].update(name=None),
            lambda graph: graph["nodes"][3].update(op=["Convolution"]),
            lambda graph: graph["nodes"][3].update(op="Nonsense"),
            lambda graph: graph["nodes"][3].update(attrs=[1]),
            lambda graph: graph["nodes"][3].pop("name"),
            lambda graph: graph["nodes"][3]["attrs"].update(kernel="(3, 3"),
            lambda graph: graph["nodes"][3]["attrs"].update(kernel="(" * 10_000),
            lambda graph: graph["nodes"][3]["attrs"].update(kernel=f"({'9' * 10_000},)"),
            lambda graph: graph["nodes"][3]["attrs"].update(num_filter="-1"),
            lambda graph: graph["nodes"][3]["attrs"].update(num_filter="1e999"),
            lambda graph: graph["nodes"][3]["attrs"].update(num_group=str(10**30)),
            lambda graph: graph["nodes"][3]["attrs"].update(pad=f"({10**12}, {10**12})"),
            lambda graph: graph["nodes"][3].update(op="SliceChannel", inputs=[[0, 0, 0]],
                                                   attrs={"num_outputs": str(10**7)}),
            lambda graph: graph["nodes"][3].update(op="Concat", attrs={"num_args": str(10**7)}),
        ],
    )  # fmt: skip
    def test_damaged(self, change):
        with pytest.raises(UpconvError):
            read(changed(change))

    def test_a_long_chain_is_no_recursion(self):
        rows = [{"op": "null", "name": "x", "inputs": []}]
        rows += [{"op": "relu", "name": f"r{i}", "inputs": [[i, 0, 0]]} for i in range(3000)]
        graph = symbol.load_json(json.dumps({"nodes": rows, "heads": [[3000, 0, 0]]}))
        assert Model(graph, {}).run(x=[-1.0, 2.0])[0].tolist() == [0, 2]

    @pytest.mark.parametrize("block", range(10))
    def test_mutated(self, block):
        """A byte, a number or a value is another one: a graph or an error, never anything else."""
        words = (b"9", b"-1", b"null", b"[]", b"{}", b'"', b"0.5", b",", b"None", b"(", b"e")
        for seed in seeds(50 * block, 50 * block + 50):
            draw = random.Random(seed)
            text = bytearray(SMALL.encode())
            for _ in range(draw.randint(1, 3)):
                place = draw.randrange(len(text))
                if draw.random() < 0.5:
                    text[place : place + draw.randint(0, 2)] = draw.choice(words)
                else:
                    text[place] = draw.randrange(256)
            with suppress(UpconvError):
                read(bytes(text))


SMALL = json.dumps({
    "nodes": [
        {"op": "null", "name": "x", "inputs": []},
        {"op": "null", "name": "w", "inputs": []},
        {"op": "Deconvolution", "name": "up", "inputs": [[0, 0, 0], [1, 0, 0]],
         "attrs": {"kernel": "(8, 8)", "num_filter": "2", "stride": "(2, 2)", "pad": "(1, 1)"}},
        {"op": "SliceChannel", "name": "s", "inputs": [[2, 0, 0]], "attrs": {"num_outputs": "2"}},
        {"op": "Pooling", "name": "p", "inputs": [[3, 1, 0]],
         "attrs": {"kernel": "(2, 2)", "pool_type": "avg", "pooling_convention": "full"}},
        {"op": "Reshape", "name": "r", "inputs": [[4, 0, 0]],
         "attrs": {"shape": "(0, -4, 1, -1, -2)"}},
    ],
    "heads": [[5, 0, 0], [3, 0, 0]],
})  # fmt: skip


def test_the_small_model_runs_before_it_is_mutated():
    with pytest.raises(mx.MXNetError, match="weight"):  # (1, 2, 8, 8) for all but w
        read(SMALL)
    model = Model(symbol.load_json(SMALL), {})
    found = model.run(x=np.ones((1, 2, 8, 8)), w=np.ones((2, 2, 8, 8)))
    assert [y.shape for y in found] == [(1, 1, 1, 19, 19), (1, 1, 20, 20)]


class TestCommands:
    @pytest.fixture(autouse=True)
    def _needs(self):
        pytest.importorskip("typer", reason="the command line needs typer")

    @staticmethod
    def upconv(*args):
        from tests.support.processes import called

        return called("mxnet", *args)

    def test_info(self):
        said = self.upconv("info", *files("fcn")).stdout.decode()
        assert "inputs      data (N, 3, H, W)\n" in said
        assert "parameters  4674 in 12 arrays" in said
        assert "Convolution 5" in said
        assert "score2" in said

    def test_info_as_json(self):
        found = json.loads(self.upconv("info", *files("unet"), "--output-format", "json").stdout)
        assert found["command"] == "mxnet info"
        assert found["inputs"] == ["data"]
        assert found["input_shapes"] == {"data": ["N", 3, "H", "W"]}
        assert found["operators"]["Deconvolution"] == 1
        assert found["transposed"][0]["target_shape"] == [8, 8]

    def test_run_on_a_file(self, tmp_path):
        model, inputs, expected = stored("gluon")
        np.save(tmp_path / "x.npy", inputs["data"])
        for source in (tmp_path / "x.npy", FOLDER / "gluon.npz"):
            out = tmp_path / f"{source.stem}.npz"
            done = self.upconv("run", *files("gluon"), "--inputs", source, "-o", out)
            assert done.returncode == 0, done
            with np.load(out) as found:
                assert_close([found[name] for name in model.outputs], expected)

    def test_run_on_random_inputs(self):
        size = ("--input-shape", "mel:1,10,6")
        done = self.upconv("run", *files("vocoder"), *size, "--seed", 3)
        assert done.stdout.decode() == "wave_output 1x1x48\n"
        assert re.fullmatch(rb"[\d.]+ (ms|s)\n", done.stderr)
        found = json.loads(
            self.upconv("run", *files("vocoder"), *size, "--output-format", "json").stdout
        )
        assert found["outputs"] == {"wave_output": [1, 1, 48]}

    def test_to_onnx(self, tmp_path):
        pytest.importorskip("onnxruntime", reason="the model is proven there")
        how = (
            "to-onnx", *files("dcgan"), "--input-shape", "noise:1,10,1,1", "-o",
            tmp_path / "g.onnx",
        )  # fmt: skip
        done = self.upconv(*how)
        assert done.returncode == 0, done
        assert b"ConvTranspose 5" in done.stdout
        assert (tmp_path / "g.onnx").stat().st_size > 10_000
        again = self.upconv(*how)
        assert again.returncode == 2
        assert b"exists" in again.stderr
        assert (
            self.upconv(*how, "--force", "--no-verify", "--output-format", "json").returncode == 0
        )

    def test_to_onnx_with_open_sizes(self, tmp_path):
        onnxruntime = pytest.importorskip("onnxruntime", reason="the model is run there")
        size = ("--input-shape", "noise:N,10,1,W")
        done = self.upconv("to-onnx", *files("dcgan"), *size, "-o", tmp_path / "g.onnx")
        assert done.returncode == 0, done
        path, provider = str(tmp_path / "g.onnx"), ["CPUExecutionProvider"]
        session = onnxruntime.InferenceSession(path, providers=provider)
        (declared,) = session.get_inputs()
        assert declared.shape == ["N", 10, 1, "W"]
        (result,) = session.get_outputs()
        assert result.shape[:3] == ["N", 3, 32]
        model = load(*files("dcgan"))
        for shape in ((1, 10, 1, 1), (5, 10, 1, 3)):  # neither is a size at which it was written
            x = np.random.default_rng(1).standard_normal(shape, np.float32)
            assert_close(session.run(None, {"noise": x}), model.run(noise=x))

    @pytest.mark.parametrize(
        ("args", "says"),
        [
            (("run", *files("vocoder")), b"or shape for mel; the inputs are mel (N, 10, W)"),
            (("to-onnx", *files("vocoder")), b"or shape for mel; the inputs are mel (N, 10, W)"),
            (("to-onnx", *files("fcn"), "--input-shape", "data:1,3,H,W"), b"depends on H, W"),
            (("to-onnx", *files("vocoder"), "--input-shape", "mel:N,?,T"), b"expected integers"),
            (("run", *files("vocoder"), "--input-shape", "mel:N,10,9"), b"expected integers"),
            (("run", *files("vocoder"), "--input-shape", "mel:1,2,3"), b"pre (Convolution)"),
            (("run", *files("vocoder"), "-o", "y.npy"), b".npz"),
            (("run", files("vocoder")[0]), b"without PARAMS, parameters are inputs too"),
            (("info", "nowhere.json"), b"No such file"),
            (("info", files("vocoder")[1]), b"is not an MXNet graph"),
            (("info", *files("vocoder")[::-1]), b"error: "),
            (("to-onnx", *files("vocoder"), "-o", "net.txt"), b".onnx"),
        ],
    )
    def test_mistakes(self, args, says):
        done = self.upconv(*args)
        assert done.returncode == 2
        assert says in done.stderr
        assert done.stdout == b""


@pytest.mark.parametrize(
    ("net", "weight", "axes"),
    [
        (lambda x: mx.sym.Convolution(x, kernel=(3,), num_filter=8, name="a"), (8, 5, 3), "N,5,W"),
        (
            lambda x: mx.sym.Convolution(x, kernel=(3,), num_filter=8, num_group=2, name="a"),
            *((8, 5, 3), "N,10,W"),
        ),
        (
            lambda x: mx.sym.Convolution(
                mx.sym.relu(x * 2), kernel=(3, 2), num_filter=8, layout="NHWC", name="a"
            ),
            *((8, 3, 2, 5), "N,H,W,5"),
        ),
        (lambda x: mx.sym.FullyConnected(x, num_hidden=8, name="a"), (8, 5), "N,5"),
        (
            lambda x: mx.sym.Deconvolution(x, kernel=(2, 2, 2), num_filter=8, name="a"),
            *((5, 8, 2, 2, 2), "N,5,D,H,W"),
        ),
        (lambda x: mx.sym.Reshape(x, shape=(1, -1)), (1,), ""),
    ],
)
def test_the_axes_of_an_input_follow_from_the_parameters(net, weight, axes):
    arrays = {"a_weight": np.ones(weight), "a_bias": np.ones(8)}
    shape = Model(net(mx.sym.var("x")), arrays).input_shapes()["x"]
    assert ",".join(map(str, shape)) == axes


def test_without_onnx_the_command_says_what_to_install(monkeypatch):
    import sys

    from upconv.mxnet.to_onnx import to_onnx

    monkeypatch.setitem(sys.modules, "onnx", None)
    with pytest.raises(EngineMissing, match=re.escape(install_command("onnx"))):
        to_onnx(Model(mx.sym.relu(mx.sym.var("x")), {}), {"x": (1,)})


def test_one_array_is_not_several():
    net = mx.sym.FullyConnected(mx.sym.var("x"), num_hidden=2, no_bias=True, name="fc")
    model = Model(net, {"fc_weight": np.ones((2, 3), np.float32)})
    assert "6 parameters in 1 array;" in repr(model)
