"""What `accelerate` leaves as it was: objects, pickles, copies, wrappers, devices and modes."""

from __future__ import annotations

import copy
import io
import os
import pickle
import subprocess
import sys

import pytest

torch = pytest.importorskip("torch")
from torch import nn  # noqa: E402

from accelerated_models import (  # noqa: E402
    X,
    generator,
    pair,
    same,
)
from upconv.torch import (  # noqa: E402
    accelerate,
    acceleration_report,
    restore,
)

pytestmark = pytest.mark.usefixtures("one_torch_thread")


class TestObjects:
    def test_restore_is_exact(self) -> None:
        model = generator()
        classes = [type(module) for module in model.modules()]
        attributes = [sorted(vars(module)) for module in model.modules()]
        restore(accelerate(accelerate(model)))
        assert [type(module) for module in model.modules()] == classes
        assert [sorted(vars(module)) for module in model.modules()] == attributes

    def test_pickles_saves_and_copies(self) -> None:
        model, plain, x = pair(generator, *X)
        file = io.BytesIO()
        torch.save(model, file)
        file.seek(0)
        others = (
            copy.deepcopy(model),
            pickle.loads(pickle.dumps(model)),
            torch.load(file, weights_only=False),
        )
        for other in others:
            assert type(other) is type(model)
            with torch.no_grad():
                other[1].bias.add_(1)  # its own, not the model's
                plain[1].bias.add_(1)
                assert same(other(x), plain(x))
                plain[1].bias.sub_(1)
                assert same(model(x), plain(x))
            assert type(restore(other)) is nn.Sequential
        assert type(model) is not nn.Sequential

    def test_shared_layers_stay_shared(self) -> None:
        up, act = nn.ConvTranspose1d(4, 4, 2), nn.ReLU()
        model = nn.Sequential(up, act, nn.Sequential(up, nn.Tanh()), act).eval()
        plain, x = copy.deepcopy(model), torch.randn(2, 4, 5)
        accelerate(model)
        assert model[0] is model[2][0]
        with torch.no_grad():
            assert same(model(x), plain(x))
            model[0].bias.add_(1)
            assert not same(model(x), plain(x))

    def test_a_subclass_with_a_forward_of_its_own_stays(self) -> None:
        class Odd(nn.ConvTranspose1d):
            def forward(self, x):
                return -super().forward(x)

        class Plain(nn.ConvTranspose1d):
            pass

        model = accelerate(
            nn.ModuleList([Odd(1, 1, 2), Plain(1, 1, 2), nn.LazyConvTranspose1d(1, 2)])
        )
        odd, plain, lazy = acceleration_report(model).layers
        assert odd.why == "Odd has a forward of its own"
        assert plain.engine == "upconv"
        assert lazy.why.startswith("LazyConvTranspose1d has a forward") or "no weight" in lazy.why

    def test_a_model_that_is_one_layer(self) -> None:
        model = nn.ConvTranspose2d(2, 3, 2, 2).eval()
        plain, x = copy.deepcopy(model), torch.randn(1, 2, 3, 4)
        assert accelerate(model) is model
        with torch.no_grad():
            assert same(model(x), plain(x))
        assert type(pickle.loads(pickle.dumps(model))) is type(model)

    def test_data_parallel_wraps_it(self) -> None:
        model, plain, x = pair(generator, *X)
        with torch.no_grad():
            assert same(nn.DataParallel(model)(x), plain(x))

    def test_ddp_wraps_it(self, tmp_path) -> None:
        """In a process of its own: gloo's threads may hang when their last user goes."""
        if not (torch.distributed.is_available() and torch.distributed.is_gloo_available()):
            pytest.skip("this PyTorch has no gloo")
        script = tmp_path / "ddp.py"
        script.write_text(_DDP.format(store=str(tmp_path / "store")), encoding="utf-8")
        path = os.pathsep.join(filter(None, sys.path))
        done = subprocess.run(
            [sys.executable, str(script)],
            capture_output=True,
            text=True,
            timeout=120,
            env={**os.environ, "PYTHONPATH": path},
            check=False,
        )
        assert done.stdout.strip() == "the same", done.stderr

    def test_other_devices_and_dtypes_are_pytorchs(self) -> None:
        model = nn.Sequential(
            nn.ConvTranspose1d(1, 1, 2, device="meta"), nn.ConvTranspose1d(1, 1, 2).double()
        )
        meta, double = acceleration_report(accelerate(model)).layers
        assert meta.why == "it is on meta: left to PyTorch's own operator"
        assert "pass example_inputs" in double.why
        moved = accelerate(generator())
        plain = restore(copy.deepcopy(moved)).double()
        with torch.no_grad():
            x = torch.randn(*X, dtype=torch.float64)
            assert same(moved.double()(x), plain(x))
            assert moved.to("meta")(x.to("meta")).shape == plain(x).shape

    def test_autocast_is_pytorchs(self) -> None:
        model, plain, x = pair(generator, *X)
        with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
            assert torch.equal(model(x), plain(x))

    def test_vmap_and_inference_mode(self) -> None:
        model, plain, x = pair(generator, *X)
        with torch.inference_mode():
            assert same(model(x), plain(x))
        with torch.no_grad():
            assert same(torch.func.vmap(model)(x[:, None]), torch.func.vmap(plain)(x[:, None]))


_DDP = """
import copy, os
import torch
from torch import distributed, nn
from upconv.torch import accelerate, restore

distributed.init_process_group("gloo", init_method=r"file://{store}", rank=0, world_size=1)
torch.set_num_threads(1)
layers = nn.ConvTranspose2d(6, 8, 4, 2), nn.BatchNorm2d(8), nn.ReLU()
model = accelerate(nn.Sequential(*layers))
plain, x = restore(copy.deepcopy(model)), torch.randn(2, 6, 4, 3)
wrapped = nn.parallel.DistributedDataParallel(model)
for each in (wrapped, plain):
    each.train()(x).square().mean().backward()
same = torch.allclose(model[0].weight.grad, plain[0].weight.grad, atol=1e-6)
with torch.no_grad():
    same = same and torch.allclose(wrapped.eval()(x), plain.eval()(x), atol=1e-5)
print("the same" if same else "different", flush=True)
os._exit(0)
"""
