"""Twenty training steps by upconv follow PyTorch's."""

import copy

import pytest

torch = pytest.importorskip("torch")
import upconv.torch as ut  # noqa: E402
from tests.support.small_models import UNet3d, dcgan  # noqa: E402

STEPS = 20


@pytest.mark.usefixtures("one_torch_thread", "upconv_is_faster")
@pytest.mark.parametrize("optimiser", [torch.optim.SGD, torch.optim.AdamW])
@pytest.mark.parametrize(
    ("build", "shape"), [(dcgan, (4, 6, 1, 1)), (UNet3d, (2, 1, 6, 4, 8))], ids=["dcgan", "unet3d"]
)
def test_twenty_steps_have_pytorchs_losses(build, shape, optimiser) -> None:
    model = build()
    plain = copy.deepcopy(model)
    ut.accelerate(model, torch.randn(shape), training=True)
    rows = [row.details for row in ut.report(model).rows]
    assert {details["training"] for details in rows if "training" in details} == {7}
    told = []
    for each in (model, plain):
        torch.manual_seed(5)
        each.train()
        update = optimiser(each.parameters(), lr=0.01)
        losses = []
        for _ in range(STEPS):
            update.zero_grad()
            y = each(torch.randn(shape))
            loss = (y - torch.randn_like(y)).square().mean()
            loss.backward()
            update.step()
            losses.append(loss.item())
        told.append(losses)
    assert told[0] == pytest.approx(told[1], rel=1e-3)
    assert told[0][0] != told[0][-1]


@pytest.mark.usefixtures("one_torch_thread")
def test_second_order_goes_through_a_step() -> None:
    layer = ut.ConvTranspose2d(2, 3, 3, stride=2).double()
    x = torch.randn(1, 2, 4, 3, dtype=torch.float64, requires_grad=True)
    (gradient,) = torch.autograd.grad(layer(x).sin().sum(), x, create_graph=True)
    gradient.square().sum().backward()
    assert layer.weight.grad.isfinite().all()


def test_a_step_in_bfloat16_autocast() -> None:
    layer = ut.Conv2d(3, 4, 3)
    with torch.autocast("cpu", torch.bfloat16):
        loss = layer(torch.randn(2, 3, 6, 5)).float().square().mean()
    loss.backward()
    assert layer.weight.grad.dtype is torch.float32
