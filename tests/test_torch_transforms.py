"""Compilers, exporters, transforms, autocast and tracers on upconv's operators for PyTorch.

python -m pytest tests/test_torch_transforms.py
"""

from __future__ import annotations

import copy
import io

import pytest

torch = pytest.importorskip("torch", reason="the face for PyTorch needs PyTorch")
from torch import nn  # noqa: E402
from torch.func import grad, hessian, jacfwd, jacrev, jvp, vmap  # noqa: E402
from torch.nn import functional as F  # noqa: E402

import upconv.torch  # noqa: E402

pytestmark = pytest.mark.filterwarnings(
    "ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::UserWarning"
)

HOW = {"stride": 2, "padding": 1, "output_padding": 1, "groups": 2}
SHAPES = ((2, 4, 3, 4), (4, 3, 3, 2), (6,))


def ours(x, w, b):
    return upconv.torch.conv_transpose2d(x, w, b, **HOW)


def theirs(x, w, b):
    return F.conv_transpose2d(x, w, b, **HOW)


def operands(seed: int = 0):
    torch.manual_seed(seed)
    return tuple(torch.randn(shape, dtype=torch.float64) for shape in SHAPES)


def scalar(function):
    return lambda *args: function(*args).sin().sum()


# Drawn here: vmap lets nobody draw inside.
POINT, TANGENT = operands(), operands(1)

TRANSFORMS = {
    "jvp": lambda f: jvp(f, POINT, TANGENT),
    "jvp of the input": lambda f: jvp(lambda x: f(x, *POINT[1:]), POINT[:1], TANGENT[:1]),
    "jvp of the bias": lambda f: jvp(lambda b: f(*POINT[:2], b), POINT[2:], TANGENT[2:]),
    "grad": lambda f: grad(scalar(f), (0, 1, 2))(*POINT),
    "grad of grad": lambda f: grad(
        lambda x, w, b: grad(scalar(f), 1)(x, w, b).cos().sum(), (0, 1, 2)
    )(*POINT),
    "jacrev": lambda f: jacrev(f, (0, 1))(*POINT),
    "jacfwd": lambda f: jacfwd(f, (0, 1))(*POINT),
    "hessian": lambda f: hessian(scalar(f), (0, 1))(*POINT),
    "gradients per sample": lambda f: vmap(
        grad(lambda w, x: scalar(f)(x[None], w, POINT[2])), (None, 0)
    )(POINT[1], POINT[0]),
    "jvp of grad": lambda f: jvp(grad(scalar(f), (0, 1)), POINT, TANGENT),
    "vmap of jvp": lambda f: vmap(lambda t: jvp(lambda x: f(x, *POINT[1:]), POINT[:1], (t,))[1])(
        torch.stack([(1.0 + i) * POINT[0] for i in range(3)])
    ),
    "batched gradients": lambda f: _batched_gradients(f),
}


def _batched_gradients(f):
    args = [each.requires_grad_() for each in operands()]
    y = f(*args)
    torch.manual_seed(5)
    g = torch.randn(3, *y.shape, dtype=torch.float64)
    return torch.autograd.grad(y, args, g, is_grads_batched=True)


@pytest.mark.parametrize("name", TRANSFORMS)
def test_transforms_give_what_they_give_of_pytorchs(name: str) -> None:
    torch.testing.assert_close(TRANSFORMS[name](ours), TRANSFORMS[name](theirs))


@pytest.mark.parametrize("of_x", [None, 0, 1, 3])
@pytest.mark.parametrize("of_w", [None, 0, 2])
@pytest.mark.parametrize("of_b", [None, 0, 1])
def test_vmap_over_any_operands(of_x, of_w, of_b) -> None:
    places = (of_x, of_w, of_b)
    if places == (None, None, None):
        pytest.skip("nothing to map over")
    args = [
        torch.randn(*shape[:place], 5, *shape[place:], dtype=torch.float64)
        if place is not None
        else torch.randn(shape, dtype=torch.float64)
        for shape, place in zip(SHAPES, places, strict=True)
    ]
    torch.testing.assert_close(vmap(ours, places)(*args), vmap(theirs, places)(*args))


def test_vmap_keeps_a_residual_and_an_activation() -> None:
    x, w, b = operands()
    residuals = torch.randn(5, *theirs(x, w, b).shape, dtype=torch.float64)
    arguments = ([2, 2], [1, 1], [1, 1], [1, 1], 2)

    def call(residual):
        return torch.ops.upconv.conv_transpose(x, w, b, *arguments, residual, "relu")

    wanted = torch.relu(theirs(x, w, b) + residuals)
    torch.testing.assert_close(vmap(call)(residuals), wanted)


def networks():
    """A small decoder of PyTorch's modules, and the same of upconv's."""
    torch.manual_seed(0)
    original = nn.Sequential(
        nn.ConvTranspose2d(6, 8, 3, stride=2, padding=1, output_padding=1),
        nn.ReLU(),
        nn.ConvTranspose2d(8, 4, 4, stride=2, groups=2, bias=False),
    )
    mine = copy.deepcopy(original)
    for i in (0, 2):
        mine[i] = upconv.torch.from_torch(mine[i])
    return mine, original


INPUTS = [(2, 6, 5, 7), (3, 6, 5, 7), (3, 6, 9, 4)]


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("dynamic", [None, True])
def test_compiled_modules_have_no_graph_breaks_and_the_same_results(
    backend: str, training: bool, dynamic: bool | None
) -> None:
    torch._dynamo.reset()
    mine, original = networks()
    mine.train(training)
    compiled = torch.compile(mine, fullgraph=True, backend=backend, dynamic=dynamic)
    for shape in INPUTS:
        x = torch.randn(shape)
        for form in (x, x.to(memory_format=torch.channels_last)):
            got, wanted = compiled(form), original(form)
            assert got.stride() == wanted.stride()
            torch.testing.assert_close(got, wanted, rtol=1e-5, atol=1e-5)
            mine.zero_grad()
            original.zero_grad()
            got.square().sum().backward()
            wanted.square().sum().backward()
            for p, q in zip(mine.parameters(), original.parameters(), strict=True):
                torch.testing.assert_close(p.grad, q.grad, rtol=1e-3, atol=1e-3)
    torch._dynamo.reset()


def test_compiled_modules_see_changed_weights() -> None:
    torch._dynamo.reset()
    mine, original = networks()
    mine.eval()
    compiled = torch.compile(mine, fullgraph=True, backend="aot_eager")
    x = torch.randn(INPUTS[0])
    with torch.no_grad():
        for change in (lambda w: w.mul_(2), lambda w: w.data.mul_(2)):
            torch.testing.assert_close(compiled(x), original(x), rtol=1e-5, atol=1e-5)
            for net in (mine, original):
                change(net[0].weight)
        torch.testing.assert_close(compiled(x), original(x), rtol=1e-5, atol=1e-5)
    torch._dynamo.reset()


@pytest.mark.long
def test_inductor() -> None:
    """With a C++ compiler, a minute at first."""
    torch._dynamo.reset()
    mine, original = networks()
    x = torch.randn(INPUTS[0])
    torch.testing.assert_close(
        torch.compile(mine, fullgraph=True)(x), original(x), rtol=1e-5, atol=1e-5
    )


def test_output_size_may_be_a_symbol() -> None:
    class Like(nn.Module):
        def __init__(self, kind: type) -> None:
            super().__init__()
            torch.manual_seed(0)
            self.up = kind(6, 8, 3, stride=2)

        def forward(self, x, like):
            return self.up(x, output_size=like.shape[-2:])

    torch._dynamo.reset()
    mine, original = Like(upconv.torch.ConvTranspose2d), Like(nn.ConvTranspose2d)
    compiled = torch.compile(mine, fullgraph=True, backend="aot_eager", dynamic=True)
    x = torch.randn(INPUTS[0])
    for height in (11, 12):
        like = torch.zeros(height, 15)
        torch.testing.assert_close(compiled(x, like), original(x, like), rtol=1e-5, atol=1e-5)
    torch._dynamo.reset()


@pytest.mark.parametrize("strict", [False, True])
@pytest.mark.parametrize("dynamic", [False, True])
def test_exported_programs(strict: bool, dynamic: bool) -> None:
    mine, original = networks()
    x = torch.randn(INPUTS[0])
    shapes = None
    if dynamic:
        sizes = {axis: torch.export.Dim(f"n{axis}", min=2, max=64) for axis in (0, 2, 3)}
        shapes = {"input": sizes}
    program = torch.export.export(mine.eval(), (x,), dynamic_shapes=shapes, strict=strict)
    assert "upconv.conv_transpose" in str(program.graph)
    file = io.BytesIO()
    torch.export.save(program, file)
    file.seek(0)
    again = torch.export.load(file).module()
    for shape in INPUTS if dynamic else INPUTS[:1]:
        x = torch.randn(shape)
        torch.testing.assert_close(again(x), original(x), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_autocast_is_pytorchs(dtype) -> None:
    mine, original = networks()
    x = torch.randn(INPUTS[0])
    with torch.autocast("cpu", dtype=dtype):
        got, wanted = mine(x), original(x)
        wide = ours(*operands())
    assert got.dtype is wanted.dtype is dtype
    assert wide.dtype is torch.float64
    torch.testing.assert_close(got, wanted, rtol=0.02, atol=0.02)
    got.float().sum().backward()
    assert mine[0].weight.grad.dtype is torch.float32


def test_deterministic_mode_is_no_obstacle_and_results_repeat() -> None:
    mine, _ = networks()
    x = torch.randn(4, 6, 33, 31)
    torch.use_deterministic_algorithms(True)
    try:
        runs = []
        for threads in (1, 2, 2):
            upconv.set_num_threads(threads)
            mine.zero_grad()
            y = mine(x)
            y.square().sum().backward()
            runs.append([y.detach().clone(), *(p.grad.clone() for p in mine.parameters())])
    finally:
        upconv.set_num_threads(None)
        torch.use_deterministic_algorithms(False)
    for first, second in zip(runs[1], runs[2], strict=True):
        assert torch.equal(first, second)
    assert torch.equal(runs[0][0], runs[1][0]), "the result does not depend on threads"
    for alone, shared in zip(runs[0], runs[1], strict=True):  # gradients may, in their last bits
        torch.testing.assert_close(alone, shared, rtol=1e-4, atol=1e-5 * float(alone.abs().max()))


def test_tracers() -> None:
    mine, original = networks()
    x, other = torch.randn(INPUTS[0]), torch.randn(INPUTS[0])
    graph = torch.fx.symbolic_trace(mine)
    traced = torch.jit.trace(mine, (x,))
    for found in (graph, traced):
        torch.testing.assert_close(found(other), original(other), rtol=1e-5, atol=1e-5)


def test_make_fx_traces_derivatives() -> None:
    from torch.fx.experimental.proxy_tensor import make_fx

    x, w, b = operands()
    graph = make_fx(lambda x: grad(scalar(ours))(x, w, b))(x)
    assert "conv_transpose_input_grad" in graph.code
    torch.testing.assert_close(graph(2 * x), grad(scalar(theirs))(2 * x, w, b))


def test_modes_and_profilers_see_the_operator() -> None:
    from torch.utils._python_dispatch import TorchDispatchMode

    class Noted(TorchDispatchMode):
        def __init__(self) -> None:
            super().__init__()
            self.names: list[str] = []

        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            self.names.append(str(func))
            return func(*args, **(kwargs or {}))

    with Noted() as mode, torch.no_grad():
        ours(*operands())
    assert "upconv.conv_transpose.default" in mode.names
    with torch.profiler.profile() as profile, torch.no_grad():
        ours(*operands())
    assert "upconv::conv_transpose" in [event.name for event in profile.events()]


def test_subclasses_of_tensors_are_asked() -> None:
    class Asked(torch.Tensor):
        seen: list = []  # noqa: RUF012

        @classmethod
        def __torch_function__(cls, func, types, args=(), kwargs=None):
            cls.seen.append(func)
            return super().__torch_function__(func, types, args, kwargs or {})

    x, w, b = operands()
    got = ours(x.as_subclass(Asked), w, b)
    assert upconv.torch.conv_transpose2d in Asked.seen
    assert isinstance(got, Asked)
    torch.testing.assert_close(got.as_subclass(torch.Tensor), theirs(x, w, b))


@pytest.mark.parametrize("bias", [False, True])
def test_the_second_derivative_under_autocast_is_that_outside(bias) -> None:
    x, w, b = (each.float().requires_grad_() for each in operands())

    def penalty():
        y = ours(x, w, b if bias else None)
        gx, gw = torch.autograd.grad(y.sin().sum(), (x, w), create_graph=True)
        return gx.pow(2).sum() + gw.pow(2).sum()

    wanted = torch.autograd.grad(penalty(), (x, w))
    inside = penalty()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        got = torch.autograd.grad(inside, (x, w))
    for mine, theirs_ in zip(got, wanted, strict=True):
        assert torch.equal(mine, theirs_)


@pytest.mark.parametrize("kind", [torch.float32, torch.bfloat16, torch.float16])
def test_autocast_adds_a_bias_of_lower_precision_to_float64(kind) -> None:
    x, w, b = operands()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        got, wanted = ours(x, w, b.to(kind)), theirs(x, w, b.to(kind))
    assert got.dtype is wanted.dtype is torch.float64
    torch.testing.assert_close(got, wanted)


@pytest.mark.skipif(not hasattr(torch.library, "register_vmap"), reason="vmap loops there")
@pytest.mark.parametrize("places", [(0, None, None), (2, None, 1), (0, 0, None), (None, None, 0)])
def test_vmap_over_an_empty_axis_is_empty(places) -> None:
    args = [
        each if place is None else torch.zeros(*each.shape[:place], 0, *each.shape[place:]).double()
        for each, place in zip(operands(), places, strict=True)
    ]
    got = vmap(ours, places)(*args)
    assert got.shape == (0, *ours(*operands()).shape)
    leaves = [each.requires_grad_() for each in args]
    found = torch.autograd.grad(vmap(ours, places)(*leaves).sum(), leaves)
    for each, leaf in zip(found, leaves, strict=True):
        assert torch.equal(each, torch.zeros_like(leaf))


@pytest.mark.parametrize("role", [0, 1])
def test_a_gradient_is_recorded_though_only_its_operand_is(role) -> None:
    args = list(operands())
    args[role].requires_grad_()
    for function in (theirs, ours):
        (found,) = torch.autograd.grad(function(*args).sum(), args[role], create_graph=True)
        assert found.requires_grad
        assert torch.autograd.grad(found.sum(), args[role], allow_unused=True) == (None,)


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_compiled_autograd_runs_graphs_that_were_recorded(backend) -> None:
    torch._dynamo.reset()
    for stride in (1, 2, 1):
        torch.manual_seed(stride)
        mine = upconv.torch.ConvTranspose2d(4, 3, 3, stride=stride)
        original, x = nn.ConvTranspose2d(4, 3, 3, stride=stride), torch.randn(2, 4, 5, 5)
        original.load_state_dict(mine.state_dict())
        original(x).pow(2).sum().backward()
        loss = mine(x).pow(2).sum()
        with torch._dynamo.config.patch(compiled_autograd=True):
            torch.compile(loss.backward, backend=backend)()
        for p, q in zip(mine.parameters(), original.parameters(), strict=True):
            torch.testing.assert_close(p.grad, q.grad, rtol=1e-4, atol=1e-4)
    torch._dynamo.reset()


@pytest.mark.skipif(
    not hasattr(torch._dynamo.decorators, "mark_unbacked"), reason="it has no such sizes"
)
@pytest.mark.parametrize("form", [torch.contiguous_format, torch.channels_last])
@pytest.mark.parametrize("axis", [0, 2])
def test_sizes_that_a_compiler_may_not_look_at(axis, form) -> None:
    torch._dynamo.reset()
    original = nn.ConvTranspose2d(4, 6, 3, stride=2)
    mine, x = upconv.torch.from_torch(original), torch.randn(2, 4, 5, 5).to(memory_format=form)
    torch._dynamo.decorators.mark_unbacked(x, axis)
    got = torch.compile(mine, fullgraph=True, backend="aot_eager")(x)
    assert got.stride() == original(x).stride()
    torch.testing.assert_close(got, original(x), rtol=1e-5, atol=1e-5)
    torch._dynamo.reset()
