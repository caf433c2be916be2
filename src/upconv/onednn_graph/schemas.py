"""The operations: names of inputs, outputs and attributes, types, defaults, accepted values.

One table, `SCHEMAS`, from which adding an operation is checked and which the documentation prints.
Where oneDNN's document and its library differ, an entry says which of the two has it (`Rule`).

Sources: the operation pages of oneDNN Graph (2023 and 2025); libdnnl 3.2 and 3.13 as run for spec
part A.

What lives here: what may be written down. What never does: shapes, arithmetic.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from ..dialects.onednn_graph import Rule
from .logical_tensors import FLOATS, DataType

BOTH = (Rule.LIBRARY, Rule.DOCUMENT)


class Form(Enum):
    """What an attribute's value is made of, as oneDNN calls it."""

    S64 = "s64"
    S64_LIST = "s64[]"
    F32 = "f32"
    BOOL = "bool"
    STRING = "string"


@dataclass(frozen=True, slots=True)
class Attribute:
    """One attribute: `words` are the strings a text may be, `low` the least integer.

    `default` counts where the attribute is not `required`; None is oneDNN's "all zeros" or absent.
    `words_of_document` replaces `words` for the rule "document" where they differ.
    """

    name: str
    form: Form
    required: bool = False
    default: object = None
    low: int = 0
    words: tuple[str, ...] = ()
    words_of_document: tuple[str, ...] = ()
    rules: tuple[Rule, ...] = BOTH

    def accepted(self, rule: Rule) -> tuple[str, ...]:
        """The strings it may be by a rule."""
        return self.words_of_document or self.words if rule is Rule.DOCUMENT else self.words

    def default_by(self, rule: Rule) -> object:
        """The value it has where it is not given."""
        return self.accepted(rule)[0] if self.form is Form.STRING else self.default


@dataclass(frozen=True, slots=True)
class Slot:
    """One input or output: `group` names the types that must be one ("T") or what they may be."""

    name: str
    group: str = "T"
    required: bool = True


@dataclass(frozen=True, slots=True)
class Schema:
    """One operation kind; `attributes` by name."""

    kind: str
    inputs: tuple[Slot, ...]
    outputs: tuple[Slot, ...]
    attributes: dict[str, Attribute]

    @property
    def least_inputs(self) -> int:
        """How many inputs must be given; the optional ones come last."""
        return sum(slot.required for slot in self.inputs)


GROUPS: dict[str, tuple[DataType, ...]] = {
    "T": FLOATS,
    "shape": (DataType.S32,),
    "statistics": FLOATS,
}
"""What a slot of each group may be; all of "T" are one type, all of "statistics" are one type."""

STATISTICS: dict[DataType, tuple[DataType, ...]] = {
    DataType.F32: (DataType.F32,),
    DataType.BF16: (DataType.F32, DataType.BF16),
    DataType.F16: (DataType.F32,),
}
"""Types of gamma, beta, mean and variance for each type of the data."""


def _named(*attributes: Attribute) -> dict[str, Attribute]:
    return {attribute.name: attribute for attribute in attributes}


_FORMAT = Attribute("data_format", Form.STRING, words=("NXC", "NCX"))
_AUTO_PAD = Attribute(
    "auto_pad",
    Form.STRING,
    words=("None", "SAME_UPPER", "SAME_LOWER", "VALID"),
    words_of_document=("none", "same_upper", "same_lower", "valid"),
)
_WINDOW = (
    Attribute("strides", Form.S64_LIST, required=True, low=1),
    Attribute("pads_begin", Form.S64_LIST, required=True),
    Attribute("pads_end", Form.S64_LIST, required=True),
    Attribute("dilations", Form.S64_LIST, required=True, low=1),
    _AUTO_PAD,
    Attribute("groups", Form.S64, default=1, low=1),
    _FORMAT,
)
_TRANSPOSED = (*_WINDOW, Attribute("weights_format", Form.STRING, words=("XOI", "IOX")))
_ORDINARY = (*_WINDOW, Attribute("weights_format", Form.STRING, words=("XIO", "OIX")))
_OUTPUT_PADDING = Attribute("output_padding", Form.S64_LIST)
_DOCUMENTED_PADDING = Attribute("output_padding", Form.S64_LIST, rules=(Rule.DOCUMENT,))
_WEIGHTS_SHAPE = Attribute("weights_shape", Form.S64_LIST, low=1)
_DST_SHAPE = Attribute("dst_shape", Form.S64_LIST, low=1)
_BROADCAST = Attribute("auto_broadcast", Form.STRING, words=("numpy", "none"))

_SRC, _DST, _WEIGHTS = Slot("src"), Slot("dst"), Slot("weights")
_DIFF_SRC, _DIFF_DST, _DIFF_WEIGHTS = Slot("diff_src"), Slot("diff_dst"), Slot("diff_weights")
_BIAS = Slot("bias", required=False)
_SHAPE_OF_WEIGHTS = Slot("weights_shape", "shape", required=False)
_SHAPE_OF_DST = Slot("dst_shape", "shape", required=False)


def _elementwise(kind: str, *attributes: Attribute) -> Schema:
    return Schema(kind, (_SRC,), (_DST,), _named(*attributes))


def _binary(kind: str) -> Schema:
    return Schema(kind, (Slot("src_0"), Slot("src_1")), (_DST,), _named(_BROADCAST))


_ALL = (
    Schema(
        "ConvTranspose",
        (_SRC, _WEIGHTS, _BIAS),
        (_DST,),
        _named(*_TRANSPOSED, _OUTPUT_PADDING),
    ),
    Schema(
        "ConvTransposeBackwardData",
        (_DIFF_DST, _WEIGHTS),
        (_DIFF_SRC,),
        _named(*_TRANSPOSED, _DOCUMENTED_PADDING),
    ),
    Schema(
        "ConvTransposeBackwardWeights",
        (_SRC, _DIFF_DST, _SHAPE_OF_WEIGHTS),
        (_DIFF_WEIGHTS,),
        _named(*_TRANSPOSED, _DOCUMENTED_PADDING, _WEIGHTS_SHAPE),
    ),
    Schema("Convolution", (_SRC, _WEIGHTS, _BIAS), (_DST,), _named(*_ORDINARY)),
    Schema(
        "ConvolutionBackwardData",
        (_DIFF_DST, _WEIGHTS, _SHAPE_OF_DST),
        (_DIFF_SRC,),
        _named(*_ORDINARY, _OUTPUT_PADDING, _DST_SHAPE),
    ),
    Schema(
        "ConvolutionBackwardWeights",
        (_SRC, _DIFF_DST, _SHAPE_OF_WEIGHTS),
        (_DIFF_WEIGHTS,),
        _named(*_ORDINARY, _WEIGHTS_SHAPE),
    ),
    Schema("BiasAdd", (_SRC, Slot("bias")), (_DST,), _named(_FORMAT)),
    Schema("BiasAddBackward", (_DIFF_DST,), (Slot("diff_bias"),), _named(_FORMAT)),
    Schema(
        "BatchNormInference",
        (_SRC, *(Slot(name, "statistics") for name in ("gamma", "beta", "mean", "variance"))),
        (_DST,),
        _named(Attribute("epsilon", Form.F32, required=True), _FORMAT),
    ),
    _elementwise("ReLU"),
    Schema(
        "ReLUBackward",
        (Slot("src / dst"), _DIFF_DST),
        (_DIFF_SRC,),
        _named(Attribute("use_dst", Form.BOOL, default=True)),
    ),
    _elementwise("LeakyReLU", Attribute("alpha", Form.F32, required=True)),
    _elementwise("Tanh"),
    _elementwise("Sigmoid"),
    _elementwise("GELU"),
    _binary("Add"),
    _binary("Subtract"),
    _binary("Multiply"),
    _binary("Divide"),
    _binary("Maximum"),
    _binary("Minimum"),
    Schema("End", (_SRC,), (), {}),
)
SCHEMAS: dict[str, Schema] = {schema.kind: schema for schema in _ALL}
"""Every operation, by its kind."""
