"""Asks the real MXNet 1.9.1 for values, gradients and refusals of three operators.

    python3.9 -m venv mxnet-venv
    mxnet-venv/bin/pip install mxnet==1.9.1 numpy==1.23.5
    mxnet-venv/bin/python make_operators.py            # a sample, operators.npz beside this file
    mxnet-venv/bin/python make_operators.py all.npz    # 2,000, 300 and 300 cases, the sample's too

A file has `cases`, one JSON text in bytes, and `values`, one float64 array. A case has

    op, seed          its inputs are `inputs(case)` below: eighths, so that sums are exact
    attributes        Python's text of a dict: tuples, lists, texts and numbers as they are passed
    shapes, dtype     of data, weight and bias; of data, gamma, beta, moving_mean and moving_var
    grad_req          of the first three; "null" has no gradient, "add" adds to an input
    engine            "onednn", the default, or "native" (MXNET_MKLDNN_ENABLED=0)
    record, backward  BatchNorm alone: train_mode of each; null where it is not recorded, or called
    results           name -> [start, shape]: values[start : start + prod(shape)]

or, of the calls that MXNet should refuse: op, kind, attributes, shapes, dtypes, engine, `outcome`:
"returned", "crashed", or [class of the error, "call" or "run"]; "run" is where a result is read.

Which engine computes what: an active target_shape is right on the native engine alone, unless `pad`
is the one that follows from it. The native engine has no rank 3, and its forward is wrong where an
axis is both strided and dilated. The native Convolution overwrites where it should add the data
gradient of a 1x1 kernel, and the native BatchNorm keeps a gradient that oneDNN sets to 0 where
gamma is fixed. Such cases are left to the other engine, or drawn anew.
"""

import ast
import json
import os
import pathlib
import random
import subprocess
import sys
import tempfile

import numpy as np

SAMPLE = {"Deconvolution": 150, "Convolution": 40, "BatchNorm": 40}
ALL = {"Deconvolution": 2000, "Convolution": 300, "BatchNorm": 300}
MOST = 240  # elements of an array
BATCH = 130  # cases of one process
LAYOUTS = {1: "NCW", 2: "NCHW", 3: "NCDHW"}


def eighths(seed, shape, low=-8, dtype="float32"):
    """Random multiples of 1/8 from low/8 to 1, the same everywhere."""
    numbers = np.random.RandomState(seed).randint(low, 9, size=tuple(shape), dtype=np.int64)
    return np.asarray(numbers / 8, dtype)


def inputs(case):
    """The arrays of a case by name: its arguments, `out_grad`, and `initial_X` for gradient X.

    `out_grad` has the shape of the result "out".
    """
    seed, found = case["seed"] * 16, {}
    for number, (name, shape) in enumerate(case["shapes"].items()):
        low = 1 if name == "moving_var" else -8
        found[name] = eighths(seed + number, shape, low, case["dtype"])
        found["initial_" + name] = eighths(seed + 8 + number, shape, dtype=case["dtype"])
    if "out" in case["results"]:
        found["out_grad"] = eighths(seed + 7, case["results"]["out"][1], dtype=case["dtype"])
    return found


# ------------------------------------------------------------------------------------- drawing


def said(rng, value, rank):
    """A shape attribute as a caller may write it."""
    forms = [tuple(value), tuple(value), list(value), str(tuple(value)), str(list(value))]
    if rank == 1:
        forms += [value[0], str(value[0]), f"({value[0]},)"]
    forms.append("(" + ",".join(map(str, value)) + ("," if rank == 1 else "") + ")")
    return rng.choice(forms)


def flag(rng, value):
    return rng.choice([value, value, str(value), str(value).lower(), int(value), str(int(value))])


def channels(rng):
    """(channels, filters, groups): plain, grouped or depthwise."""
    kind = rng.choice(("plain", "plain", "grouped", "depthwise"))
    if kind == "plain":
        return rng.randint(1, 4), rng.randint(1, 4), 1
    groups = rng.randint(2, 3)
    if kind == "depthwise":
        return groups, groups * rng.randint(1, 2), groups
    return groups * rng.randint(1, 3), groups * rng.randint(1, 2), groups


def requests(rng, names):
    while True:
        found = {name: rng.choice(("write", "write", "add", "null")) for name in names}
        if set(found.values()) != {"null"}:
            return found


def target(rng, axes):
    """(target_shape, the pad that follows from it) for axes (size, kernel, stride, dilate)."""
    sizes, pads = [], []
    for size, k, s, d in axes:
        full = (size - 1) * s + (k - 1) * d + 1
        totals = [t for t in range(min(full, 5)) if s > 1 or t % 2 == 0]
        total = rng.choice(totals)
        sizes.append(full - total)
        pads.append((total + 1) // 2)
    return sizes, pads


def draw_layer(rng, op):
    """A random (De)convolution without seed, or None where it would be too large or empty."""
    transposed, rank = op == "Deconvolution", rng.choice((1, 1, 2, 2, 2, 3))
    each = lambda low, high: [rng.randint(low, high) for _ in range(rank)]  # noqa: E731
    size, kernel = each(1, (9, 5, 3)[rank - 1]), each(1, (5, 4, 3)[rank - 1])
    stride = each(1, 3) if rng.random() < 0.8 else [1] * rank
    dilated = rng.random() < 0.4 and (rank < 3 or not transposed)
    dilate = each(1, 3) if dilated else [1] * rank
    pad = each(0, 3) if rng.random() < 0.7 else [0] * rank
    adj = [0] * rank
    batch, (depth, filters, groups) = rng.randint(1, 3), channels(rng)
    written = {"kernel": said(rng, kernel, rank), "num_filter": rng.choice([filters, str(filters)])}
    for name, value, unset in (("stride", stride, 1), ("dilate", dilate, 1), ("pad", pad, 0)):
        if value != [unset] * rank or rng.random() < 0.3:
            written[name] = said(rng, value, rank)
    axes, matching = list(zip(size, kernel, stride, dilate)), True  # noqa: B905 - Python 3.9
    if transposed and rng.random() < 0.5:
        adj = [rng.randint(0, s - 1) for s in stride]
        written["adj"] = said(rng, adj, rank)
    if transposed and rng.random() < 0.25:
        out, follows = target(rng, axes)
        written["target_shape"] = said(rng, out, rank)
        if rng.random() < 0.3:
            written["pad"], pad = said(rng, follows, rank), follows
        matching = pad == follows and "adj" not in written
    elif transposed:
        out = [(i - 1) * s + (k - 1) * d + 1 for i, k, s, d in axes]
        out = [o - 2 * p + a for o, p, a in zip(out, pad, adj)]  # noqa: B905
    else:
        out = [i + 2 * p - (k - 1) * d - 1 for (i, k, _, d), p in zip(axes, pad)]  # noqa: B905
        out = [o // s + 1 for o, s in zip(out, stride)]  # noqa: B905
    bias = rng.random() < 0.5
    if bias == transposed or rng.random() < 0.3:
        written["no_bias"] = flag(rng, not bias)
    if groups > 1 or rng.random() < 0.2:
        written["num_group"] = rng.choice([groups, str(groups)])
    for name, values in (
        ("workspace", (0, 1, 256, "512")),
        ("cudnn_tune", (None, "off", "limited_workspace", "fastest")),
        ("cudnn_off", (True, False, "true")),
        ("layout", (None, LAYOUTS[rank])),
    ):
        if rng.random() < 0.15:
            written[name] = rng.choice(values)
    rows = (depth, filters // groups) if transposed else (filters, depth // groups)
    shapes = {"data": [batch, depth, *size], "weight": [*rows, *kernel]}
    if bias:
        shapes["bias"] = [filters]
    counts = [int(np.prod(shape)) for shape in [*shapes.values(), [batch, filters, *out]]]
    if min(out) < 1 or max(counts) > MOST:
        return None
    both = any(k > 1 and s > 1 and d > 1 for _, k, s, d in axes)
    grad_req = requests(rng, shapes)
    engines = {"onednn": matching, "native": rank < 3 and not (transposed and both)}
    if not transposed and grad_req["data"] == "add":
        engines["native"] = max(kernel) > 1
    usual = engines["onednn"] and rng.random() < 0.7
    engine = "onednn" if usual or not engines["native"] else "native"
    if not engines[engine]:
        return None
    dtype = "float64" if engine == "native" and rng.random() < 0.2 else "float32"
    return {
        "op": op, "attributes": repr(written), "shapes": shapes, "dtype": dtype,
        "grad_req": grad_req, "engine": engine,
    }  # fmt: skip


def draw_norm(rng, op):
    shape = [rng.randint(1, 4) for _ in range(rng.choice((2, 3, 4, 4, 5)))]
    written, axis = {}, 1
    if rng.random() < 0.5:
        written["axis"] = axis = rng.randint(-len(shape), len(shape) - 1)
    if rng.random() < 0.6:
        written["eps"] = rng.choice((1e-5, 1e-3, "0.01", 0.1))
    if rng.random() < 0.6:
        written["momentum"] = rng.choice((0.0, 0.5, "0.9", 1.0, 0.99))
    for name, chance in (("fix_gamma", 0.8), ("use_global_stats", 0.4), ("output_mean_var", 0.4)):
        if rng.random() < chance:
            written[name] = flag(rng, rng.random() < (0.3 if name == "fix_gamma" else 0.5))
    if np.prod(shape) > MOST:
        return None
    record = rng.choice((True, True, True, False, None))
    backward = None if record is None else rng.choice((True, True, True, False, None))
    grad_req = requests(rng, ("data", "gamma", "beta"))
    fixed = str(written.get("fix_gamma", True)).lower() in ("true", "1")
    native = rng.random() < 0.3 and not (fixed and grad_req["gamma"] == "add")
    row = [shape[axis]]
    shapes = {"data": shape, "gamma": row, "beta": row, "moving_mean": row, "moving_var": row}
    return {
        "op": op, "attributes": repr(written), "shapes": shapes,
        "dtype": "float64" if native and rng.random() < 0.2 else "float32", "grad_req": grad_req,
        "engine": "native" if native else "onednn", "record": record, "backward": backward,
    }  # fmt: skip


def draw(counts):
    cases = []
    for number, (op, count) in enumerate(sorted(counts.items())):
        rng, seed = random.Random(20261122 + number), 10_000 * number
        while seed < 10_000 * number + count:
            case = draw_norm(rng, op) if op == "BatchNorm" else draw_layer(rng, op)
            if case is not None:
                cases.append({**case, "seed": seed})
                seed += 1
    return cases


# ------------------------------------------------------------------------------------ computing


def compute(case, mx):
    """The results of a case by name; `mx` is MXNet, or upconv.mxnet where a test compares them."""
    attributes, given = ast.literal_eval(case["attributes"]), inputs({**case, "results": {}})
    arrays = {name: mx.nd.array(given[name], dtype=case["dtype"]) for name in case["shapes"]}
    for name, request in case["grad_req"].items():
        arrays[name].attach_grad(request)
        if request != "null":  # "write" writes over it
            arrays[name].grad[:] = given["initial_" + name]
    record, backward = case.get("record", True), case.get("backward", True)
    with mx.autograd.record(train_mode=record) if record is not None else mx.autograd.pause():
        out = getattr(mx.nd, case["op"])(*arrays.values(), **attributes)
    outs = out if isinstance(out, list) else [out]
    found = {
        name: value.asnumpy()
        for name, value in zip(("out", "mean", "invstd"), outs)  # noqa: B905 - Python 3.9
    }
    for name in ("gamma", "moving_mean", "moving_var"):
        if name in arrays:
            found[name + "_after_forward"] = arrays[name].asnumpy()
    if backward is not None:
        head = eighths(case["seed"] * 16 + 7, outs[0].shape, dtype=case["dtype"])
        outs[0].backward(mx.nd.array(head, dtype=case["dtype"]), train_mode=backward)
        for name, request in case["grad_req"].items():
            if request != "null":
                found["d_" + name] = arrays[name].grad.asnumpy()
        for name in ("moving_mean", "moving_var"):
            if name in arrays:
                found[name + "_after"] = arrays[name].asnumpy()
    return found


def call(case, mx):
    """What MXNet says to a call that it should refuse."""
    arrays = [
        mx.nd.ones(shape, dtype=dtype)
        for shape, dtype in zip(case["shapes"], case["dtypes"])  # noqa: B905 - Python 3.9
    ]
    try:
        out = getattr(mx.nd, case["op"])(*arrays, **ast.literal_eval(case["attributes"]))
    except Exception as error:
        return [type(error).__name__, "call"]
    try:
        (out[0] if isinstance(out, list) else out).asnumpy()
    except Exception as error:
        return [type(error).__name__, "run"]
    return "returned"


def child(work, done):
    """Answer the cases in the file `work`; results go to the file `done`, outcomes to `work`."""
    import mxnet as mx  # here, so that tests may import this file without it

    cases, values = json.loads(pathlib.Path(work).read_text()), {}
    for number, case in enumerate(cases):
        if "kind" in case:
            case["outcome"] = call(case, mx)
        else:
            values.update({f"{number} {name}": v for name, v in compute(case, mx).items()})
    np.savez(done, **values)
    pathlib.Path(work).write_text(json.dumps(cases))


def answer(cases):
    """(case, its results) of each; a batch whose process dies is tried again in halves."""
    if not cases:
        return
    with tempfile.TemporaryDirectory() as folder:
        work, done = pathlib.Path(folder, "work.json"), pathlib.Path(folder, "done.npz")
        work.write_text(json.dumps(cases))
        enabled = "0" if cases[0]["engine"] == "native" else "1"
        ran = subprocess.run(
            [sys.executable, __file__, "--child", str(work), str(done)],
            env={**os.environ, "MXNET_MKLDNN_ENABLED": enabled},  # read when MXNet is imported
            capture_output=len(cases) > 1,
            check=False,
        )
        if ran.returncode == 0:
            with np.load(done) as file:
                for number, case in enumerate(json.loads(work.read_text())):
                    begin = f"{number} "
                    yield case, {n[len(begin) :]: file[n] for n in file if n.startswith(begin)}
            return
    if len(cases) > 1:
        yield from answer(cases[: len(cases) // 2])
        yield from answer(cases[len(cases) // 2 :])
    elif "kind" in cases[0]:
        yield {**cases[0], "outcome": "crashed"}, {}
    else:
        print("left out:", cases[0])


def main():
    if sys.argv[1:2] == ["--child"]:
        child(*sys.argv[2:])
        return
    from mxnet_refusals import REFUSED

    path = pathlib.Path(*sys.argv[1:] or [pathlib.Path(__file__).with_name("operators.npz")])
    waiting = draw(ALL if sys.argv[1:] else SAMPLE) + REFUSED
    cases, values, start = [], [], 0
    for engine in ("onednn", "native"):
        own = [case for case in waiting if case["engine"] == engine]
        for first in range(0, len(own), BATCH):
            for case, results in answer(own[first : first + BATCH]):
                if "kind" not in case:
                    case["results"] = {}
                for name, array in results.items():
                    case["results"][name] = [start, list(array.shape)]
                    values.append(array.astype(np.float64).ravel())
                    start += array.size
                cases.append(case)
    text = np.frombuffer(json.dumps(cases).encode(), np.uint8)
    np.savez_compressed(path, cases=text, values=np.concatenate(values))
    print(f"{len(cases)} cases of {len(waiting)}, {start} values, {path.stat().st_size} bytes")


if __name__ == "__main__":
    main()
