"""The library's own view of our descriptors, where it is installed; no GPU is needed for that."""

import pytest

from tests.support.made_up_gpu import MadeUpEngine
from upconv.engines.cudnn import abi, graphs, norms, operation
from upconv.engines.cudnn.operation import Convolution, Ends
from upconv.errors import EngineMissing
from upconv.geometry import Axis
from upconv.problem import Activation, DataLayout, Direction, DType, Problem


def _missing() -> str:
    """Why the library cannot look at descriptors; newer ones load parts that need a GPU."""
    try:
        layer = Problem(Direction.FORWARD, (Axis(4, 2, 2),), 1, 8, 8)
        list(graphs.operations(Convolution.of(layer)))
    except EngineMissing as missing:
        return str(missing)
    except abi.CudnnError as error:
        if "SUBLIBRARY" not in str(error):
            raise
        return f"this cuDNN looks at nothing without a GPU: {error}"
    return ""


pytestmark = pytest.mark.skipif(bool(_missing()), reason=_missing())

AXES = (Axis(10, 4, 2, 1, 1, 1), Axis(9, 3, 1, 2, 0, 2))


def test_attributes_are_read_back() -> None:
    made = abi.tensor(7, (2, 3, 4, 5), (60, 20, 5, 1), abi.HALF)
    read = (abi.Attribute.TENSOR_DIMENSIONS, abi.Attribute.TENSOR_UNIQUE_ID)
    assert [made.get(name, abi.Type.INT64) for name in read] == [[2, 3, 4, 5], [7]]
    assert made.get(abi.Attribute.TENSOR_DATA_TYPE, abi.Type.DATA_TYPE) == [abi.HALF]


@pytest.mark.parametrize("layout", DataLayout)
@pytest.mark.parametrize("dtype", DType)
@pytest.mark.parametrize("direction", Direction)
def test_operations_are_accepted(direction: Direction, dtype: DType, layout: DataLayout) -> None:
    problem = Problem(direction, AXES, 2, 8, 4, dtype=dtype, layout=layout)
    assert MadeUpEngine().refuses(problem) is None
    ends = [Ends(), Ends(accumulate=True)]
    if direction is not Direction.WEIGHT_GRAD:
        ends += [
            Ends(True, True, each, 0.2 * (each is Activation.LEAKY_RELU))
            for each in operation._FUSED
        ]
    for end in ends:
        steps = 1 + end.bias + end.residual + (end.activation is not Activation.NONE)
        assert len(list(graphs.operations(Convolution.of(problem, end)))) == steps


@pytest.mark.parametrize("last", [False, True])
@pytest.mark.parametrize("forward", [True, False])
def test_norms_are_accepted(forward: bool, last: bool) -> None:
    assert len(list(norms.operations(norms.Norm(forward, (4, 32, 256), DType.FLOAT16, last)))) == 1


def test_a_wrong_attribute_is_an_error_with_its_reason() -> None:
    with pytest.raises(abi.CudnnError, match="CUDNN_STATUS"):
        abi.tensor(1, (2, -3), (1, 1), abi.FLOAT)
    made = abi.tensor(1, (2, 3), (3, 1), abi.FLOAT)
    with pytest.raises(abi.CudnnError, match="CUDNN_STATUS"):
        made.get(abi.Attribute.ENGINE_GLOBAL_INDEX, abi.Type.INT64)
