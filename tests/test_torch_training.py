"""Twenty steps of training with upconv's layers give the losses of PyTorch's.

python -m pytest tests/test_torch_training.py
"""

from __future__ import annotations

import copy

import pytest

torch = pytest.importorskip("torch", reason="the face for PyTorch needs PyTorch")
from torch import nn  # noqa: E402
from torch.nn import functional as F  # noqa: E402

import upconv.torch  # noqa: E402

STEPS = 20
LAYERS = (nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)


@pytest.fixture(autouse=True)
def one_thread():
    """Layers this small are not worth a second."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def replaced(model: nn.Module) -> nn.Module:
    """A copy with upconv's layers."""
    model = copy.deepcopy(model)
    for parent in list(model.modules()):
        for name, child in list(parent.named_children()):
            if type(child) in LAYERS:
                setattr(parent, name, upconv.torch.from_torch(child))
    assert any(type(each).__module__ == "upconv.torch.modules" for each in model.modules())
    return model


def generator() -> nn.Module:
    """DCGAN's (Radford, Metz, Chintala 2015), narrow, for 32 x 32 pixels."""
    widths, layers = (32, 16, 8), [nn.ConvTranspose2d(16, 32, 4, 1, 0, bias=False)]
    for i, width in enumerate(widths):
        layers += [nn.BatchNorm2d(width), nn.ReLU()]
        out = widths[i + 1] if i + 1 < len(widths) else 3
        layers.append(nn.ConvTranspose2d(width, out, 4, 2, 1, bias=False))
    return nn.Sequential(*layers, nn.Tanh())


def discriminator() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 8, 4, 2, 1), nn.LeakyReLU(0.2),
        nn.Conv2d(8, 16, 4, 2, 1, bias=False), nn.BatchNorm2d(16), nn.LeakyReLU(0.2),
        nn.Conv2d(16, 1, 8),
    )  # fmt: skip


def gan_losses(g: nn.Module, d: nn.Module) -> list[float]:
    torch.manual_seed(1)
    # Adam divides a gradient by its own size: rounding of one that is nearly nothing would become
    # a whole step, either way. Its eps is above that.
    adam = [torch.optim.Adam(net.parameters(), 1e-3, (0.5, 0.999), 1e-4) for net in (g, d)]
    losses = []
    for _ in range(STEPS):
        real, fake = torch.randn(4, 3, 32, 32), g(torch.randn(4, 16, 1, 1))
        loss_d = F.softplus(-d(real)).mean() + F.softplus(d(fake.detach())).mean()
        adam[1].zero_grad()
        loss_d.backward()
        adam[1].step()
        loss_g = F.softplus(-d(fake)).mean()
        adam[0].zero_grad()
        loss_g.backward()
        adam[0].step()
        losses += [loss_d.item(), loss_g.item()]
    return losses


class UNet(nn.Module):
    """Two levels in three dimensions, as in Cicek et al. 2016."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Sequential(nn.Conv3d(1, 8, 3, padding=1), nn.InstanceNorm3d(8), nn.ReLU())
        self.down = nn.Sequential(nn.Conv3d(8, 16, 3, 2, 1), nn.InstanceNorm3d(16), nn.ReLU())
        self.deep = nn.Sequential(nn.Conv3d(16, 32, 3, 2, 1), nn.InstanceNorm3d(32), nn.ReLU())
        self.up1 = nn.ConvTranspose3d(32, 16, 2, 2)
        self.mid = nn.Sequential(nn.Conv3d(32, 16, 3, padding=1), nn.ReLU())
        self.up2 = nn.ConvTranspose3d(16, 8, 3, 2, 1, 1)
        self.last = nn.Conv3d(16, 2, 1)

    def forward(self, x):
        a = self.first(x)
        b = self.down(a)
        c = self.mid(torch.cat((b, self.up1(self.deep(b))), 1))
        return self.last(torch.cat((a, self.up2(c)), 1))


def segmentation_losses(net: nn.Module) -> list[float]:
    torch.manual_seed(2)
    optimiser = torch.optim.SGD(net.parameters(), 0.05, momentum=0.9)
    losses = []
    for _ in range(STEPS):
        x = torch.randn(2, 1, 8, 12, 8)
        coarse = F.interpolate(F.avg_pool3d(x, 4), scale_factor=4)  # only the deep path sees it
        loss = F.cross_entropy(net(x), (coarse[:, 0] > 0).long())
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        losses.append(loss.item())
    return losses


# PyTorch's own losses differ by 3e-7 between one thread and two, and so do ours from them.
CLOSE = 3e-6


def assert_close(got: list[float], wanted: list[float]) -> None:
    assert got == pytest.approx(wanted, rel=CLOSE)


def test_dcgan() -> None:
    torch.manual_seed(0)
    g, d = generator(), discriminator()
    mine = replaced(g)
    wanted = gan_losses(copy.deepcopy(g), copy.deepcopy(d))
    assert_close(gan_losses(mine, copy.deepcopy(d)), wanted)
    assert abs(wanted[0] - wanted[-2]) > 100 * CLOSE  # it learns: another step would be seen


def test_unet_in_three_dimensions() -> None:
    torch.manual_seed(0)
    net = UNet()
    mine = replaced(net)
    wanted = segmentation_losses(copy.deepcopy(net))
    assert_close(segmentation_losses(mine), wanted)
    assert abs(wanted[0] - wanted[-1]) > 100 * CLOSE


@pytest.mark.parametrize("role", ["x", "w"])
def test_a_gradient_that_is_a_tenth_off_is_seen(monkeypatch, role: str) -> None:
    """Planted: the input or the weight gradient of upconv's layers."""
    from upconv.torch import derivatives

    made = derivatives.made

    def wrong(wanted, *args):
        return made(wanted, *args) * (1.1 if wanted == role else 1)

    monkeypatch.setattr(derivatives, "made", wrong)
    torch.manual_seed(0)
    net = UNet()
    mine = replaced(net)
    with pytest.raises(AssertionError):
        assert_close(segmentation_losses(mine), segmentation_losses(copy.deepcopy(net)))
