"""Bad calls of oneDNN Graph's functions end in an `ArgumentError` that says what and where.

Among them is everything that makes libdnnl refuse, abort or divide by zero.
"""

import random
import re

import numpy as np
import pytest

from tests.support.onednn_graph_cases import FUNCTIONS
from upconv import ArgumentError, DTypeError

SHAPES = {
    "ConvTranspose": [(1, 5, 2), (3, 4, 2)],
    "ConvTransposeBackwardData": [(1, 11, 4), (3, 4, 2)],
    "ConvTransposeBackwardWeights": [(1, 5, 2), (1, 11, 4)],
    "Convolution": [(1, 11, 4), (3, 4, 2)],
    "ConvolutionBackwardData": [(1, 5, 2), (3, 4, 2)],
    "ConvolutionBackwardWeights": [(1, 11, 4), (1, 5, 2)],
}


def called(kind: str, words: dict[str, object], shapes=None) -> np.ndarray:
    arrays = [np.ones(shape, np.float32) for shape in shapes or SHAPES[kind]]
    if kind.endswith("Weights"):
        words = {"weights_shape": (3, 4, 2), **words}
    return FUNCTIONS[kind](*arrays, **{"strides": [2], **words})


def says(error: type[ArgumentError], text: str):
    """The message is `text`, with anything in the place of "..."."""
    pattern = ".*".join(map(re.escape, text.split("...")))
    return pytest.raises(error, match=f"^{pattern}$")


ATTRIBUTES = [
    ({"strides": [0]}, ArgumentError, "strides[0] is 0; expected an integer >= 1."),
    ({"strides": [-1]}, ArgumentError, "strides[0] is -1; expected an integer >= 1."),
    ({"strides": [2.0]}, DTypeError, "strides[0] is 2.0 (float); expected an integer."),
    ({"strides": None}, DTypeError, "strides is None (NoneType); expected an integer."),
    ({"strides": [2, 2]}, ArgumentError,
     "strides is (2, 2) (2 of them); expected one integer per spatial axis, 1 here. ..."),
    ({"dilations": [0]}, ArgumentError, "dilations[0] is 0; expected an integer >= 1."),
    ({"pads_begin": []}, ArgumentError, "pads_begin is () (0 of them); expected one integer ..."),
    ({"pads_begin": [-1]}, ArgumentError, "pads_begin[0] is -1; expected an integer >= 0."),
    ({"pads_end": [2**70]}, ArgumentError, "pads_end[0] is 118...; expected an integer <= ..."),
    ({"groups": 0}, ArgumentError, "groups is 0; expected an integer >= 1."),
    ({"groups": True}, DTypeError, "groups is True (bool); expected an integer."),
    ({"groups": 3}, ArgumentError,
     ("groups is 3; expected a divisor of 2, the weight's undivided channels. The weight's shape is"
      " (3, 4, 2).")),
    ({"auto_pad": "same_upper"}, ArgumentError,
     ("auto_pad is 'same_upper'; expected one of None, VALID, SAME_UPPER, SAME_LOWER, by rule"
      " 'library'.")),
    ({"auto_pad": "VALID", "rule": "document"}, ArgumentError,
     ("auto_pad is 'VALID'; expected one of none, valid, same_upper, same_lower, by rule"
      " 'document'.")),
    ({"auto_pad": 1}, DTypeError, "auto_pad is 1 (int); expected a string."),
    ({"rule": "docs"}, ArgumentError, "rule is 'docs'; expected one of 'library', 'document'."),
    ({"data_format": "NHWC"}, ArgumentError,
     "data_format is 'NHWC'; expected one of 'NCX', 'NXC'."),
    ({"data_format": None}, DTypeError, "data_format is None (NoneType); expected a string."),
    ({"weights_format": "NXO"}, ArgumentError, "weights_format is 'NXO'; expected one of X..."),
]  # fmt: skip


@pytest.mark.parametrize(("words", "error", "text"), ATTRIBUTES)
@pytest.mark.parametrize("kind", FUNCTIONS)
def test_every_function_refuses_an_attribute(kind, words, error, text) -> None:
    with says(error, text):
        called(kind, words)


GRADIENT = "ConvTransposeBackwardWeights"
SHAPED = [
    ("ConvTranspose", {"output_padding": [2]}, None,
     "output_padding[0] is 2; expected less than the stride = 2. oneDNN Graph refuses more."),
    ("ConvTransposeBackwardData", {"output_padding": [1]}, None,
     ("output_padding is [1]; expected None. The library has no such attribute for gradients;"
      " rule='document' does.")),
    ("ConvTranspose", {}, [(1, 5, 3), (3, 4, 2)],
     ("channels of src is 3; expected 2, as the weight (3, 4, 2) and groups imply. See"
      " data_format and weights_format.")),
    ("Convolution", {}, [(1, 11, 5), (3, 4, 2)],
     "channels of src is 5; expected 4, as the weight (3, 4, 2) and groups imply. ..."),
    ("ConvTranspose", {}, [(5, 2), (4, 2)],
     "src.shape is (5, 2); expected 3 to 5 dimensions: batch, channels and 1 to 3 spatial axes."),
    ("ConvTranspose", {}, [(1, 5, 2), (3, 3, 4, 2)],
     "the weight's shape is (3, 3, 4, 2); expected 3 dimensions, like the data."),
    ("ConvTranspose", {}, [(1, 5, 2), (0, 4, 2)],
     "weights_shape[0] is 0; expected an integer >= 1."),
    ("ConvTranspose", {}, [(1, 5, 2), (3, 4, 2), (2,)], "bias... is (2,); expected (4,)..."),
    ("ConvTranspose", {"pads_begin": [9], "pads_end": [9]}, None,
     "the output size on axis 0 is -7 = ...; expected at least 0. ..."),
    ("Convolution", {}, [(1, 2, 4), (3, 4, 2)],
     ("the padded input on axis 0 is 2 positions = ...; expected at least the dilated kernel's"
      " extent, 3. ...")),
    ("ConvolutionBackwardData", {"dst_shape": [1, 13, 4]}, None,
     ("dst_shape on axis 0 is 13, which a convolution with these pads maps to 6 positions;"
      " expected a size that it maps to the input's 5. ...")),
    ("ConvolutionBackwardData", {"dst_shape": [1, 11, 5]}, None,
     "dst_shape is [1, 11, 5]; expected (1, 11, 4), as the operands imply."),
    ("ConvolutionBackwardData", {"dst_shape": [11]}, None,
     "dst_shape is (11,); expected 3 sizes, N and C included, in the order NXC."),
    ("ConvolutionBackwardData", {"dst_shape": 11}, None,
     "dst_shape is 11 (int); expected a tuple of integers."),
    (GRADIENT, {"weights_shape": None}, None,
     "weights_shape is None (NoneType); expected a tuple of integers."),
    (GRADIENT, {}, [(1, 5, 2), (1, 14, 4)], "diff_dst.shape on axis 0 is 14, which a ..."),
    (GRADIENT, {}, [(1, 5, 2), (2, 11, 4)],
     "the batch size is 1 in src and 2 in diff_dst; expected one size."),
    (GRADIENT, {}, [(1, 5, 2), (1, 11, 1, 4)],
     "diff_dst.shape is (1, 11, 1, 4); expected 3 dimensions, like src."),
    (GRADIENT, {"out": np.ones((3, 4, 1), np.float32)}, None,
     "out.shape is (3, 4, 1); expected (3, 4, 2). ..."),
]  # fmt: skip


@pytest.mark.parametrize(("kind", "words", "shapes", "text"), SHAPED)
def test_a_function_refuses_shapes(kind, words, shapes, text) -> None:
    with says(ArgumentError, text):
        called(kind, words, shapes)


def test_types_are_not_mixed_and_none_is_invented() -> None:
    x, w = np.ones((1, 5, 2), np.float32), np.ones((3, 4, 2))
    with says(DTypeError, "weight.dtype is float64; expected float32, the dtype of x. ..."):
        FUNCTIONS["ConvTranspose"](x, w, strides=[2])
    with says(DTypeError, "src.dtype is int64; expected float16, ..."):
        FUNCTIONS["ConvTranspose"](w.astype(int), w, strides=[2])
    with says(DTypeError, "weights is [1] (list); expected an array..."):
        FUNCTIONS["Convolution"](x, [1], strides=[2])


def test_no_call_ends_but_in_a_result_or_in_words() -> None:
    """Random nonsense in one attribute or one shape."""
    rng = random.Random(0)
    odd = [None, -1, 0, 1, 7, 2.5, "x", "None", [], [1], [0], [-1], [2, 2], [2**70], ["a"], (), {}]
    names = ["strides", "pads_begin", "pads_end", "dilations", "auto_pad", "groups", "data_format",
             "weights_format", "rule"]  # fmt: skip
    results = 0
    for _ in range(600):
        kind = rng.choice(list(FUNCTIONS))
        words, shapes = {rng.choice(names): rng.choice(odd)}, list(SHAPES[kind])
        if rng.random() < 0.3:
            at = rng.randrange(2)
            shapes[at] = tuple(rng.choice((0, 1, 3, size)) for size in shapes[at])
        try:
            results += called(kind, words, shapes) is not None
        except ArgumentError:
            continue
    assert results > 30
