"""Models with random weights, saved by the real MXNet, and files of arrays; see `FILES`.

    python3.9 -m venv mxnet-venv
    mxnet-venv/bin/pip install mxnet==1.9.1 numpy==1.23.5
    mxnet-venv/bin/python make_models.py       # models/, but for gluon2; params/, but for the rest

The others come from the same script under other versions, each in an environment of its own:
mxnet==2.0.0b1 (the files with a 2 in their name), 0.11.0 and 0.9.5.post2 with numpy==1.19.5
(first.params, oldest.params).

models/NAME-symbol.json, NAME-0000.params    what `save_checkpoint` or `export` wrote
models/NAME.npz                              inputs and outputs by name, outputs in order: out0, ...

    dcgan       Deconvolution, BatchNorm with fixed and free gamma, relu, tanh
    fcn         padded Convolution, Pooling by the "full" rule, Dropout, grouped Deconvolution, Crop
                with an offset and with the center, sum of paths, SoftmaxOutput over channels
    unet        Pooling, a Deconvolution with target_shape, UpSampling, Concat, LeakyReLU, sigmoid
    gluon       Dense, Reshape, Conv2DTranspose, BatchNorm without scale or center, Flatten
    gluon_np    the same under `npx.set_np()`: other operators, parameters of version 3
    gluon2      the same of 2.0.0b1: parameters in an archive
    vocoder     1-D Deconvolution, dilated Convolution, gates by SliceChannel, slices, Concat, tanh
"""

import os
import pathlib
import sys

import numpy as np

HERE = pathlib.Path(__file__).parent


def fill(rng, name, shape):
    """Random values that keep activations in range, and statistics that are not 0 and 1."""
    if name.endswith(("_var", "gamma")):
        return rng.uniform(0.5, 1.5, shape).astype("float32")
    if name.endswith(("_mean", "beta", "bias")):
        return rng.uniform(-0.3, 0.3, shape).astype("float32")
    fan = max(1, np.prod(shape) / max(shape[:2]) if len(shape) > 1 else 4)
    return (rng.standard_normal(shape) * np.sqrt(1.5 / fan)).astype("float32")


def save(name, symbol, **inputs):
    """Fill a symbol's parameters, run it, and store model, inputs and outputs."""
    import mxnet as mx  # here, so that tests may look for doctests in this file without it

    rng = np.random.RandomState(sum(map(ord, name)))
    shapes, _, aux_shapes = symbol.infer_shape(**{key: a.shape for key, a in inputs.items()})
    free = {"softmax_label"}
    arguments = {
        key: mx.nd.array(fill(rng, key, shape))
        for key, shape in zip(symbol.list_arguments(), shapes)  # noqa: B905 - Python 3.9
        if key not in inputs and key not in free
    }
    states = {
        key: mx.nd.array(fill(rng, key, shape))
        for key, shape in zip(symbol.list_auxiliary_states(), aux_shapes)  # noqa: B905
    }
    (HERE / "models").mkdir(exist_ok=True)
    mx.model.save_checkpoint(str(HERE / "models" / name), 0, symbol, arguments, states)
    given = {key: mx.nd.array(a) for key, a in inputs.items()}
    for key, shape in zip(symbol.list_arguments(), shapes):  # noqa: B905
        if key in free:
            given[key] = mx.nd.zeros(shape)
    executor = symbol.bind(mx.cpu(), {**arguments, **given}, aux_states=states)
    store(name, inputs, [out.asnumpy() for out in executor.forward(is_train=False)])


def store(name, inputs, outputs):
    named = {f"out{number}": out for number, out in enumerate(outputs)}
    np.savez_compressed(HERE / "models" / f"{name}.npz", **inputs, **named)
    print(name, {key: a.shape for key, a in inputs.items()}, [out.shape for out in outputs])


def values(seed, *shape):
    return np.random.RandomState(seed).standard_normal(shape).astype("float32")


# --------------------------------------------------------------------------------------- symbols


def dcgan(mx):
    net, common = mx.sym.Variable("noise"), {"kernel": (4, 4), "no_bias": True}
    for number, (filters, more) in enumerate(((32, {}), (16, 1), (8, 1), (4, 1))):
        more = {"stride": (2, 2), "pad": (1, 1)} if more else {}
        net = mx.sym.Deconvolution(net, num_filter=filters, name=f"g{number}", **common, **more)
        fixed = {"fix_gamma": number % 2 == 0, "eps": 1e-5 + 1e-12}
        net = mx.sym.BatchNorm(net, name=f"gbn{number}", **fixed)
        net = mx.sym.Activation(net, name=f"gact{number}", act_type="relu")
    net = mx.sym.Deconvolution(
        net, kernel=(3, 3), pad=(1, 1), num_filter=3, no_bias=False, name="g"
    )
    save(
        "dcgan", mx.sym.Activation(net, name="gout", act_type="tanh"), noise=values(1, 2, 10, 1, 1)
    )


def fcn(mx):
    data = mx.sym.Variable("data")

    def block(net, number, filters, **pad):
        net = mx.sym.Convolution(
            net, kernel=(3, 3), num_filter=filters, name=f"conv{number}", **pad
        )
        net = mx.sym.Activation(net, act_type="relu", name=f"relu{number}")
        how = {"pool_type": "max" if number < 3 else "avg", "pooling_convention": "full"}
        return mx.sym.Pooling(net, kernel=(2, 2), stride=(2, 2), name=f"pool{number}", **how)

    first = block(data, 1, 8, pad=(10, 10))
    second = block(first, 2, 12, pad=(1, 1))
    third = mx.sym.Dropout(block(second, 3, 16, pad=(1, 1)), p=0.5, name="drop")
    score = mx.sym.Convolution(third, kernel=(1, 1), num_filter=5, name="score")
    up = mx.sym.Deconvolution(
        score, kernel=(4, 4), stride=(2, 2), adj=(1, 1), num_filter=5, num_group=5, workspace=1024,
        name="score2",
    )  # fmt: skip
    skip = mx.sym.Convolution(second, kernel=(1, 1), num_filter=5, name="score_pool2")
    cropped = mx.sym.Crop(up, skip, center_crop=True, name="score2c")
    fused = cropped + skip
    big = mx.sym.Deconvolution(
        fused, kernel=(8, 8), stride=(4, 4), num_filter=5, name="bigscore", no_bias=True
    )
    upscore = mx.sym.Crop(*[big, data], offset=(9, 8), name="upscore")
    weights = {"grad_scale": 1, "use_ignore": True, "ignore_label": 255}
    net = mx.sym.SoftmaxOutput(upscore, multi_output=True, name="softmax", **weights)
    save("fcn", net, data=values(2, 1, 3, 33, 29))


def unet(mx):
    data = mx.sym.Variable("data")

    def convolved(net, name, filters, leaky):
        net = mx.sym.Convolution(
            net, kernel=(3, 3), pad=(1, 1), num_filter=filters, no_bias=True, name=f"{name}_conv"
        )
        net = mx.sym.BatchNorm(net, fix_gamma=False, eps=1e-5, name=f"{name}_bn")
        if leaky:
            return mx.sym.LeakyReLU(net, act_type="leaky", slope=0.2, name=f"{name}_leaky")
        return mx.sym.Activation(net, act_type="relu", name=f"{name}_relu")

    def pooled(net):
        return mx.sym.Pooling(net, kernel=(2, 2), stride=(2, 2), pool_type="max")

    first = convolved(data, "down1", 8, False)
    second = convolved(pooled(first), "down2", 12, True)
    third = convolved(pooled(second), "down3", 16, True)
    # 8 from 4: the pad that follows is (1, 1), and is given too, as oneDNN ignores what follows.
    up = mx.sym.Deconvolution(
        third, kernel=(4, 4), stride=(2, 2), pad=(1, 1), target_shape=(8, 8), num_filter=12,
        no_bias=False, name="up2_deconv",
    )  # fmt: skip
    net = convolved(mx.sym.Concat(up, second, dim=1, name="cat2"), "up2", 12, True)
    up = mx.sym.UpSampling(net, scale=2, sample_type="nearest", num_args=1, name="up1_nearest")
    net = convolved(mx.sym.concat(up, first, dim=1, name="cat1"), "up1", 8, False)
    net = mx.sym.LeakyReLU(net, act_type="prelu", name="prelu")
    net = mx.sym.Convolution(net, kernel=(1, 1), num_filter=2, name="head")
    save("unet", mx.sym.sigmoid(net, name="mask"), data=values(3, 2, 3, 16, 16))


def vocoder(mx):
    data = mx.sym.Variable("mel")
    net = mx.sym.Convolution(data, kernel=7, pad=3, num_filter=16, name="pre")
    channels = 16
    for stage, stride in enumerate((4, 2)):
        channels //= 2
        net = mx.sym.LeakyReLU(net, act_type="leaky", slope=0.1)
        net = mx.sym.Deconvolution(
            net, kernel=(2 * stride,), stride=(stride,), pad=(stride // 2,), num_filter=channels,
            no_bias=False, name=f"up{stage}",
        )  # fmt: skip
        for dilate in (1, 3):
            inner = mx.sym.LeakyReLU(net, act_type="leaky", slope=0.1)
            inner = mx.sym.Convolution(
                inner, kernel=(3,), dilate=(dilate,), pad=(dilate,), num_filter=2 * channels,
                name=f"res{stage}_{dilate}",
            )  # fmt: skip
            gates = mx.sym.SliceChannel(inner, num_outputs=2, axis=1)
            net = net + mx.sym.tanh(gates[0]) * mx.sym.sigmoid(gates[1])
        net = net * 0.5
    low = mx.sym.slice_axis(net, axis=1, begin=0, end=2)
    high = mx.sym.slice(net, begin=(None, 2, None), end=(None, None, None))
    net = mx.sym.LeakyReLU(mx.sym.Concat(high, low, dim=1), act_type="elu", slope=0.3)
    net = mx.sym.Convolution(net, kernel=(7,), pad=(3,), num_filter=1, name="post")
    save("vocoder", mx.sym.tanh(net, name="wave"), mel=values(4, 2, 10, 12))


# ----------------------------------------------------------------------------------------- Gluon


def gluon(name):
    import mxnet as mx
    from mxnet.gluon import nn

    np_mode = name != "gluon"

    class Generator(nn.HybridBlock):
        def __init__(self):
            super().__init__()
            self.dense = nn.Dense(8 * 3 * 3, activation="relu")
            self.norm = nn.BatchNorm(scale=False, epsilon=1e-4)
            self.up1 = nn.Conv2DTranspose(
                6, 3, strides=2, output_padding=1, groups=2, activation="relu", in_channels=8
            )
            self.norm1 = nn.BatchNorm(center=False)
            self.up2 = nn.Conv2DTranspose(4, (4, 2), strides=(2, 1), padding=1, use_bias=False)
            self.norm2 = nn.BatchNorm(use_global_stats=True)
            self.act = nn.LeakyReLU(0.1)
            self.flat = nn.Flatten()
            self.head = nn.Dense(5, flatten=True)

        def hybrid_forward(self, F, x):  # 1.x
            x, shape = self.dense(x), (-1, 8, 3, 3)
            return self.after(F.np.reshape(x, shape) if np_mode else F.reshape(x, shape=shape))

        def after(self, x):
            x = self.norm1(self.up1(self.norm(x)))
            x = self.act(self.norm2(self.up2(x)))
            return self.head(self.flat(x)), x

    if name == "gluon2":  # whose blocks have `forward` alone
        del Generator.hybrid_forward
        Generator.forward = lambda self, x: self.after(mx.np.reshape(self.dense(x), (-1, 8, 3, 3)))

    data = values(5, 3, 7)
    array = mx.np.array if np_mode else mx.nd.array
    net, rng = Generator(), np.random.RandomState(17)
    net.initialize()
    net.hybridize()
    net(array(data))
    for key, parameter in net.collect_params().items():
        parameter.set_data(array(fill(rng, key, parameter.shape)))
    outputs = [out.asnumpy() for out in net(array(data))]
    net.export(str(HERE / "models" / name), epoch=0)
    store(name, {"data": data}, outputs)


# ---------------------------------------------------------------------------------------- arrays


def arrays(mx, name):
    """Write one of the files that test_mxnet_params.py knows the contents of."""
    (HERE / "params").mkdir(exist_ok=True)
    path = str(HERE / "params" / f"{name}.params")
    ones = [[1, 2, 3], [4, 5, 6]]
    types = ("float32", "float64", "float16", "uint8", "int32", "int8", "int64", "bool")
    sparse = mx.nd.sparse if name == "sparse" else None
    if name == "dict":
        named = {f"arg:{kind}": mx.nd.array(ones, dtype=kind) for kind in types}
        mx.nd.save(path, {**named, "aux:é": mx.nd.array([-1.5]), "": mx.nd.array([7])})
    elif name == "list":
        mx.nd.save(path, [mx.nd.array(ones), mx.nd.array([8], dtype="int32")])
    elif name == "empty":
        mx.nd.save(path, {})
    elif name == "sparse":
        rows = sparse.row_sparse_array(([[1, 2], [3, 4]], [0, 3]), shape=(5, 2))
        columns = sparse.csr_matrix(([1, 2, 3], [0, 2, 1], [0, 1, 1, 3]), shape=(3, 4))
        nothing = {"rows0": sparse.zeros("row_sparse", (3, 2)), "csr0": sparse.zeros("csr", (2, 3))}
        mx.nd.save(path, {"rows": rows, "csr": columns.astype("float16"), **nothing})
    elif name in ("np", "archive2", "np2"):
        made = {"scalar": mx.np.array(3.5), "none": mx.np.zeros((0, 3)), "ones": mx.np.array(ones)}
        made["bool"] = mx.np.array([True, False], dtype=bool)
        if name == "archive2":
            mx.npx.savez(path, **made)
        else:
            mx.nd.save(path, {key: value.as_nd_ndarray() for key, value in made.items()})
    else:  # the oldest versions know no more
        mx.nd.save(path, {"arg:a": mx.nd.array(ones), "h": mx.nd.array([1], dtype="float16")})


def main():
    np.bool = bool  # which the oldest versions ask for
    import mxnet as mx

    if sys.argv[1:] == ["np"]:
        mx.npx.set_np()
        gluon("gluon_np")
        arrays(mx, "np")
    elif mx.__version__.startswith("0."):
        arrays(mx, "first" if mx.__version__.startswith("0.11") else "oldest")
    elif mx.__version__.startswith("2."):
        gluon("gluon2")
        arrays(mx, "np2")
        arrays(mx, "archive2")
    else:
        for model in (dcgan, fcn, unet, vocoder):
            model(mx)
        gluon("gluon")
        for name in ("dict", "list", "empty", "sparse"):
            arrays(mx, name)
        if os.spawnv(os.P_WAIT, sys.executable, [sys.executable, __file__, "np"]):
            raise SystemExit("MXNet failed in NumPy's semantics.")


if __name__ == "__main__":
    main()
