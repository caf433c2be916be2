"""The explorer in a real browser, against `upconv.geometry` and `upconv.dialects`.

Skipped where no Chromium is installed (Debian: `apt-get install chromium`).
"""

import json
import random
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support import browser as browsers
from tests.support.paths import ROOT
from upconv import dialects
from upconv.dialects.layer import Layer
from upconv.errors import UpconvError
from upconv.geometry import Axis

FOLDER = ROOT / "docs" / "explorer"
PROGRAM = browsers.found()
pytestmark = pytest.mark.skipif(PROGRAM is None, reason="no Chromium is installed")

# What each framework's call in the page stands for: the keywords go to its dialect as they are.
CALLS = {
    "upconv": "upconv.conv_transpose(",
    "PyTorch": "torch.nn.ConvTranspose1d(",
    "ONNX": "onnx.helper.make_node(",
    "Keras, TensorFlow": "keras.layers.Conv1DTranspose(",
    "JAX": "jax.lax.conv_transpose(",
    "MXNet": "mx.nd.Deconvolution(",
}
WRITERS = {
    "PyTorch": dialects.to_torch,
    "ONNX": dialects.to_onnx,
    "Keras, TensorFlow": dialects.to_keras,
    "MXNet": dialects.to_mxnet,
}


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("explorer") / "page.html"
    command = [sys.executable, "-W", "error", str(FOLDER / "make.py"), str(made)]
    subprocess.run(command, check=True, timeout=120)
    return made


@pytest.fixture(scope="module")
def chromium() -> Iterator[browsers.Browser]:
    assert PROGRAM
    with browsers.browser(PROGRAM) as opened:
        yield opened


@pytest.fixture
def page(chromium: browsers.Browser, file: Path) -> browsers.Browser:
    chromium.open(file)
    return chromium


def read(call: str, size: int, kernel: int) -> Layer:
    """The layer of a call as the page writes it, read by its own framework's dialect."""
    framework = next(name for name, begin in CALLS.items() if call.startswith(begin))

    def keywords(*_: object, **given: Any) -> dict[str, Any]:
        return given

    names = dict.fromkeys(("x", "w", "C", "F"))
    given = eval("keywords(" + call[len(CALLS[framework]) :], {"keywords": keywords, **names})
    if framework == "upconv":
        assert set(given) == {"stride", "padding", "dilation"}
        crops = given["padding"][0]
        return Layer((Axis(size, kernel, given["stride"], given["dilation"], *crops),))
    if framework == "PyTorch":
        return dialects.from_torch(size, kernel, **given)
    if framework == "ONNX":
        return dialects.from_onnx((size,), **given)
    if framework == "Keras, TensorFlow":
        return dialects.from_keras(size, kernel, **given)
    if framework == "JAX":
        return dialects.from_jax((size,), (kernel,), **given)
    given.pop("num_filter")
    return dialects.from_mxnet(size, **given)


def picks(table: dict[str, Any], count: int, seed: int) -> list[dict[str, int]]:
    """Random choices of a reader: any mode, all numbers in the ranges of the page."""
    draw = random.Random(seed)
    found = []
    for number in range(count):
        pick = {"mode": number % len(table["modes"])}
        for name, (low, high) in table["ranges"].items():
            pick[name] = draw.randint(low, high)
        mode = table["modes"][pick["mode"]]
        low = table["paddings"][0] if mode["low"] is None else mode["low"]
        pick |= {word: draw.randint(low, draw.choice([2, 12])) for word in ("begin", "end")}
        pick |= {"extra": draw.randint(0, draw.choice([1, table["most_extra"]]))}
        pick |= {"target": draw.randint(1, 1 + pick["size"] * pick["stride"] + pick["kernel"])}
        found.append(pick)
    return found


def expected(pick: dict[str, int], table: dict[str, Any]) -> Layer | None:
    """What the pick is by the dialects themselves; None where they refuse it."""
    mode = table["modes"][pick["mode"]]
    text = mode["call"]
    values = {"k": pick["kernel"], "s": pick["stride"], "d": pick["dilation"], **pick}
    for name, value in values.items():
        text = text.replace("{" + name + "}", str(value))
    try:
        layer = read(text, pick["size"], pick["kernel"])
        if mode["framework"].startswith("Keras"):
            dialects.to_keras(layer)
    except UpconvError:
        return None
    return layer


def test_500_random_geometries_are_those_of_upconv(page: browsers.Browser) -> None:
    table = page.value("table")
    tried = picks(table, 500, seed=20)
    answers = page.value(f"{json.dumps(tried)}.map(compute)")
    refused = 0
    for pick, answer in zip(tried, answers, strict=True):
        layer = expected(pick, table)
        if layer is None:
            assert answer.keys() == {"refusal"}, pick
            assert answer["refusal"].endswith("."), pick
            refused += 1
            continue
        assert "refusal" not in answer, (pick, answer)
        check(layer.axes[0], pick, answer)
    assert 50 < refused < 250


def check(axis: Axis, pick: dict[str, int], answer: dict[str, Any]) -> None:
    """Sizes, products, phases and calls of one geometry."""
    assert (answer["p"], answer["q"]) == (axis.crop_begin, axis.crop_end), pick
    assert (answer["full"], answer["out"]) == (axis.full, axis.out), pick
    products = [[[each.input, each.tap] for each in axis.products(o)] for o in range(axis.out)]
    assert answer["feeds"] == products, pick
    assert answer["phases"] == [len(phase.taps) for phase in axis.phases()], pick
    assert answer["calls"].keys() == CALLS.keys()
    for framework, call in answer["calls"].items():
        if call is not None:
            assert read(call, axis.size, axis.kernel).axes == (axis,), (pick, call)
        elif framework in WRITERS:
            with pytest.raises(UpconvError):
                WRITERS[framework](Layer((axis,)))
        else:
            raise AssertionError(f"{framework} can say all: {pick}")


def test_other_readings_of_onnx_are_those_of_the_dialect(page: browsers.Browser) -> None:
    table = page.value("table")
    tried = [
        pick for pick in picks(table, 1200, seed=21)
        if table["modes"][pick["mode"]]["framework"] == "ONNX" and expected(pick, table)
    ]  # fmt: skip
    told = 0
    for pick, answer in zip(tried, page.value(f"{json.dumps(tried)}.map(compute)"), strict=True):
        mode = table["modes"][pick["mode"]]["name"].removeprefix("auto_pad ")
        words = {"auto_pad": mode} if mode != "pads" else {"pads": [pick["begin"], pick["end"]]}
        for name, rule in (("ONNX Runtime", "onnxruntime"), ("OpenVINO", "openvino")):
            try:
                layer = dialects.from_onnx(
                    (pick["size"],), [pick["kernel"]], strides=[pick["stride"]],
                    dilations=[pick["dilation"]], output_padding=[pick["extra"]], rule=rule,
                    **words,
                )  # fmt: skip
            except UpconvError:
                assert answer["others"][name].keys() == {"refusal"}, (pick, name)
                told += 1
                continue
            p, q = layer.crops[0]
            if (p, q) == (answer["p"], answer["q"]):
                assert name not in answer["others"], (pick, name)
            else:
                assert answer["others"][name] == {"p": p, "q": q}, (pick, name)
                told += 1
    assert told > 20


def test_what_is_typed_is_shown(page: browsers.Browser) -> None:
    """The fields, the sentence, the boxes, the calls and the address go together."""
    table = page.value("table")
    tried = picks(table, 40, seed=22)
    for pick in tried:
        fields = json.dumps(pick)
        page.value(
            f"(() => {{ for (const [name, value] of Object.entries({fields})) "
            "find(name).value = value; find('size').dispatchEvent(new Event('input', "
            "{bubbles: true})); })()"
        )
        said, layer = page.value("find('result').textContent"), expected(pick, table)
        if layer is None:
            assert said.startswith("Refused: "), (pick, said)
            assert page.value("find('legal').hidden")
            continue
        axis = layer.axes[0]
        assert f", {axis.out} position" in said, (pick, said)
        counts = page.value("[...find('outputs').children].map(box => Number(box.textContent))")
        assert counts == [len(axis.products(o)) for o in range(axis.out)], pick
        calls = page.value("[...find('calls').querySelectorAll('code')].map(c => c.textContent)")
        assert all(read(call, axis.size, axis.kernel).axes == (axis,) for call in calls), pick
        assert f"stride={pick['stride']}&" in page.value("location.hash")
    assert page.complaints() == []


@pytest.mark.parametrize("field", ["", "0", "2.5", "99", "-1"])
def test_a_number_out_of_range_is_told(page: browsers.Browser, field: str) -> None:
    page.value(f"find('kernel').value = {field!r}; show()")
    assert (
        page.value("find('result').textContent") == "Refused: Kernel takes an integer from 1 to 9."
    )
    assert page.value("find('kernel').getAttribute('aria-invalid')") == "true"


def test_the_address_is_taken_up(chromium: browsers.Browser, file: Path) -> None:
    chromium.open(file)
    slugs = chromium.value("table.modes.map(slug)")
    assert len(set(slugs)) == len(slugs)
    assert "keras-tensorflow-padding-same" in slugs
    hash_ = "mode=mxnet-target-shape&size=4&kernel=4&stride=2&dilation=1&target=8"
    chromium.value(f"location.hash = '#{hash_}'; recall(); show()")
    assert chromium.value("find('result').textContent").startswith(
        "4 positions in, 8 positions out"
    )
    assert "target_shape=(8,)" in chromium.value("find('calls').textContent")


def test_it_is_told_to_those_who_do_not_see_it(page: browsers.Browser) -> None:
    """Every field and output has a name; one output is in the order of Tab, arrows go on."""
    unnamed = "[...document.querySelectorAll('input, select')].filter(f => !f.labels.length).length"
    assert page.value(unnamed) == 0
    assert page.value("find('result').getAttribute('aria-live')") == "polite"
    assert page.value("find('outputs').children[1].getAttribute('aria-label')") == (
        "Output 1: input 0 by tap 2, input 1 by tap 0"
    )
    assert page.value("find('outputs').querySelectorAll('[tabindex=\"0\"]').length") == 1
    page.value("find('outputs').querySelector('[tabindex=\"0\"]').focus()")
    at = "Number(document.activeElement.dataset.o)"
    moves = [("Home", 0), ("ArrowRight", 1), ("ArrowLeft", 0), ("ArrowLeft", 0), ("End", 9)]
    for key, wanted in moves:
        event = f"new KeyboardEvent('keydown', {{key: '{key}', bubbles: true}})"
        page.value(f"document.activeElement.dispatchEvent({event})")
        assert page.value(at) == wanted
    assert page.value("find('detail').textContent") == "y[9] = x[4]*w[2]"
    assert page.value("document.activeElement.getAttribute('aria-selected')") == "true"


def test_pointing_at_an_output_marks_its_inputs(page: browsers.Browser) -> None:
    event = "new PointerEvent('pointerover', {bubbles: true})"
    page.value(f"find('outputs').children[3].dispatchEvent({event})")
    marked = "[...find('inputs').querySelectorAll('.active')].map(box => box.textContent)"
    assert page.value(marked) == ["x1", "x2"]
    assert page.value("find('lines').querySelectorAll('.active').length") == 2


@pytest.mark.parametrize("dark", [False, True])
@pytest.mark.parametrize("width", [400, 1200])
def test_it_fits_loads_nothing_and_can_be_read(
    chromium: browsers.Browser, file: Path, width: int, dark: bool
) -> None:
    chromium.open(file, width=width, dark=dark)
    assert chromium.value("document.documentElement.scrollWidth") <= width
    assert chromium.complaints() == []
    assert chromium.requests() == [file.as_uri()]
    assert chromium.pale() == []
    light = "parseInt(getComputedStyle(document.body).backgroundColor.slice(4)) > 128"
    assert chromium.value(light) is not dark


def test_it_stays_small() -> None:
    parts = [FOLDER / name for name in ("page.html", "explorer.css", "explorer.js")]
    assert sum(len(part.read_text(encoding="utf-8").splitlines()) for part in parts) < 600
    script = parts[2].read_text(encoding="utf-8")
    assert not any(word in script for word in ("fetch(", "XMLHttpRequest", "import("))
