"""Calls that MXNet 1.9.1 should refuse, by the kind of fault; make_operators.py asks it."""

_LAYER = {"kernel": (3, 3), "num_filter": 4}
_SHAPES = {
    "Deconvolution": ([1, 2, 5, 5], [2, 4, 3, 3], [4]),
    "Convolution": ([1, 2, 5, 5], [4, 2, 3, 3], [4]),
    "BatchNorm": ([2, 3, 4, 4], [3], [3], [3], [3]),
}


def _case(op, kind, *, shapes=None, dtypes=None, inputs=None, engine="onednn", **attributes):
    """A good call with something else in it; an attribute of ... is left out."""
    layer = op != "BatchNorm"
    whole = {**(_LAYER if layer else {}), **attributes}
    whole = {name: value for name, value in whole.items() if value is not ...}
    usual = {"Deconvolution": 2, "Convolution": 3, "BatchNorm": 5}[op]
    given = list(_SHAPES[op][: inputs or usual])
    for number, shape in (shapes or {}).items():
        given[number] = shape
    types = ["float32"] * len(given)
    for number, dtype in (dtypes or {}).items():
        types[number] = dtype
    return {
        "op": op, "kind": kind, "attributes": repr(whole), "shapes": given, "dtypes": types,
        "engine": engine,
    }  # fmt: skip


def _deconvolution(kind, **changes):
    return _case("Deconvolution", kind, **changes)


def _both(kind, **changes):
    return [_case(op, kind, **changes) for op in ("Deconvolution", "Convolution")]


_CUBE = {"shapes": {0: [1, 2, 3, 3, 3], 1: [2, 4, 2, 2, 2]}, "kernel": (2, 2, 2)}

REFUSED = [
    *_both("unknown keyword", dilation=(1, 1)),
    *_both("unknown keyword", strides=2),
    *_both("kernel missing", kernel=...),
    *_both("num_filter missing", num_filter=...),
    *_both("num_filter zero", num_filter=0),
    *_both("num_filter malformed", num_filter="four"),
    _deconvolution("num_filter negative", num_filter=-1),
    _deconvolution("num_filter fraction", num_filter=4.5),
    *_both("kernel rank", kernel=(3, 3, 3, 3)),
    *_both("kernel rank", kernel=()),
    *_both("length", stride=2),
    *_both("length", stride=(2, 2, 2)),
    *_both("length", dilate=(1,)),
    *_both("length", pad="(1,1,1)"),
    _deconvolution("length", adj=(0,)),
    _deconvolution("target length", target_shape=(8,)),
    _deconvolution("target length", target_shape=8),
    *_both("malformed shape", stride=(1.5, 1)),
    *_both("malformed shape", pad="one"),
    *_both("malformed shape", pad="(1,1"),
    *_both("malformed shape", kernel="(3;3)"),
    *_both("shape of None", pad=None),
    _deconvolution("shape of None", kernel=None),
    *_both("bad bool", no_bias="yes"),
    _deconvolution("bad bool", no_bias=2),
    _deconvolution("bad bool", cudnn_off="off"),
    _deconvolution("bad bool", no_bias=None),
    *_both("bad enum", cudnn_tune="fast"),
    *_both("bad enum", layout="NCWH"),
    _deconvolution("bad enum", layout="nchw"),
    _deconvolution("layout rank", layout="NCW"),
    _deconvolution("layout rank", layout="NCDHW"),
    _deconvolution("bias with no_bias", inputs=3),
    _deconvolution("bias with no_bias", inputs=3, no_bias=True),
    _deconvolution("bias missing", no_bias=False),
    _case("Convolution", "bias with no_bias", no_bias=True),
    _case("Convolution", "bias missing", inputs=2),
    *_both("weight missing", inputs=1, no_bias=True),
    *_both("data rank", shapes={0: [2, 5, 5]}),
    *_both("data rank", shapes={0: [1, 2, 5, 5, 5]}),
    *_both("weight shape", shapes={1: [3, 4, 3, 3]}),
    *_both("weight shape", shapes={1: [2, 4, 3]}),
    *_both("weight shape", kernel=(2, 3)),
    _deconvolution("bias shape", inputs=3, no_bias=False, shapes={2: [3]}),
    _case("Convolution", "bias shape", shapes={2: [3]}),
    _deconvolution("channels not divisible", num_group=3, num_filter=3, shapes={1: [2, 1, 3, 3]}),
    _deconvolution("filters not divisible", num_group=2, num_filter=3, shapes={1: [2, 1, 3, 3]}),
    _deconvolution("zero group", num_group=0),
    *_both("zero in kernel", kernel=(0, 3)),
    *_both("zero in stride", stride=(0, 1)),
    *_both("zero in dilate", dilate=(1, 0)),
    _deconvolution("adj too big", adj=(1, 0)),
    _deconvolution("adj too big", stride=(2, 2), adj=(2, 0)),
    _deconvolution("adj negative", stride=(2, 2), adj=(-1, 0)),
    _deconvolution("target too big", target_shape=(8, 7)),
    _deconvolution("target odd at stride 1", target_shape=(6, 7)),
    _deconvolution("target on onednn", stride=(2, 2), target_shape=(10, 10)),
    _deconvolution("target partly zero", stride=(2, 2), target_shape=(10, 0)),
    _deconvolution("target negative", stride=(2, 2), target_shape=(10, -1)),
    _deconvolution("output negative", pad=(0, 9)),
    _case("Convolution", "kernel larger than data", dilate=(3, 1)),
    *_both("pad negative", pad=(-1, 0)),
    *_both("stride negative", stride=(-1, 1)),
    *_both("mixed types", dtypes={1: "float64"}),
    *_both("mixed types", dtypes={0: "float16"}),
    *_both("integers", dtypes=dict.fromkeys(range(2), "int32"), inputs=2, no_bias=True),
    *_both("float16", dtypes=dict.fromkeys(range(2), "float16"), inputs=2, no_bias=True),
    _deconvolution("NHWC", layout="NHWC", shapes={0: [1, 5, 5, 2], 1: [2, 3, 3, 4]}),
    _case("Convolution", "NHWC", layout="NHWC", shapes={0: [1, 5, 5, 2], 1: [4, 3, 3, 2]}),
    _deconvolution("dilation of rank 3", dilate=(1, 2, 1), **_CUBE),
    _deconvolution("rank 3 on native", engine="native", **_CUBE),
    _deconvolution("workspace malformed", workspace="much"),
    _deconvolution("workspace negative", workspace=-1),
    _case("BatchNorm", "unknown keyword", epsilon=1e-3),
    _case("BatchNorm", "axis out of range", axis=4),
    _case("BatchNorm", "axis out of range", axis=-5),
    _case("BatchNorm", "bad bool", fix_gamma="no"),
    _case("BatchNorm", "malformed number", eps="small"),
    _case("BatchNorm", "gamma shape", shapes={1: [4]}),
    _case("BatchNorm", "statistics missing", inputs=3),
    _case("BatchNorm", "mixed types", dtypes={1: "float64"}),
    _case("BatchNorm", "integers", dtypes=dict.fromkeys(range(5), "int32")),
    _case("BatchNorm", "eps too small", eps=1e-6),
]
