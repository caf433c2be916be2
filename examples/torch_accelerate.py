"""A PyTorch generator, accelerated in place, changed, saved and restored.

Claims: results agree before and after; the next call detects a changed parameter; saved decisions
accelerate a copy in the same way; `restore` restores the original classes. Without PyTorch, the
script says so and ends.
"""

from __future__ import annotations

import copy
import tempfile
from importlib.util import find_spec
from pathlib import Path


def main() -> None:
    """Build a small generator, accelerate it, save the decisions, change it and restore it."""
    if find_spec("torch") is None:
        print("PyTorch is not installed: pip install '.[torch]'")
        return
    import torch
    from torch import nn

    from upconv.torch import accelerate, report, restore

    torch.manual_seed(0)
    layers: list[nn.Module] = []
    for i, (before, after) in enumerate(((32, 48), (48, 24))):
        up = nn.ConvTranspose2d(before, after, 4, 1 + min(i, 1), i, bias=False)
        layers += [up, nn.BatchNorm2d(after), nn.ReLU()]
    model = nn.Sequential(*layers, nn.ConvTranspose2d(24, 3, 4, 2, 1), nn.Tanh()).eval()
    noise = torch.randn(4, 32, 1, 1)
    classes = [type(module) for module in model.modules()]
    twin = copy.deepcopy(model)

    with torch.no_grad():
        expected = model(noise)
        accelerate(model, noise)
        print(report(model))
        difference = float((model(noise) - expected).abs().max())
        print(f"largest difference {difference:.1e}")
        assert difference < 1e-5

        with tempfile.TemporaryDirectory() as folder:
            report(model).save(Path(folder) / "decisions.json")
            accelerate(twin, decisions=Path(folder) / "decisions.json")
        assert torch.allclose(twin(noise), model(noise), atol=1e-5)

        model[1].bias.add_(0.5)  # this normalization may be folded into a weight
        changed = model(noise)
        assert float((changed - expected).abs().max()) > 1e-3

        restore(model)
        assert float((model(noise) - changed).abs().max()) < 1e-5
    assert [type(module) for module in model.modules()] == classes
    print("the model follows a changed parameter; restore restores the original classes")


if __name__ == "__main__":
    main()
