"""Memory on huge pages: arrays like others, whatever the system has to say about it."""

import mmap
import sys
from pathlib import Path

import numpy as np
import pytest

from upconv.engines import huge_pages
from upconv.engines.huge_pages import on_huge_pages

PAGE = 2 << 20
PAGE_BYTES = huge_pages.page_bytes


@pytest.fixture(autouse=True)
def pages_of_two_mebibytes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever this system has: it need not do what it is asked."""
    if sys.platform != "linux":
        pytest.skip("only Linux is asked")
    monkeypatch.setattr(huge_pages, "page_bytes", lambda: PAGE)


@pytest.mark.parametrize(
    "nbytes", [PAGE - PAGE // 5, PAGE - 4096, PAGE, PAGE + 1, 3 * PAGE - 1, 5 * PAGE + 4096]
)
def test_an_array_begins_with_a_page_and_holds_what_is_put_into_it(nbytes: int) -> None:
    array = on_huge_pages(nbytes)
    assert array is not None
    assert array.nbytes == nbytes
    assert array.ctypes.data % PAGE == 0
    array[:] = np.arange(nbytes, dtype=np.uint8)
    view = array[-1000:]
    del array  # the view keeps the memory
    assert view[-1] == (nbytes - 1) % 256


def test_little_memory_is_not_asked_for_on_a_huge_page() -> None:
    assert on_huge_pages(0) is None
    assert on_huge_pages(PAGE - PAGE // 5 - 1) is None


def test_memory_is_given_back() -> None:
    before = _mapped()
    for _ in range(64):
        array = on_huge_pages(16 * PAGE)
        assert array is not None
        array[:: PAGE // 2] = 1
        del array
    assert _mapped() < before + 32 * PAGE


def test_a_refusal_is_no_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: object) -> None:
        raise OSError(12, "Cannot allocate memory")

    monkeypatch.setattr(mmap, "mmap", refused)
    assert on_huge_pages(PAGE) is None


@pytest.mark.parametrize(
    ("enabled", "size", "page"),
    [
        ("always [madvise] never\n", "2097152\n", PAGE),
        ("[always] madvise never\n", "2097152\n", PAGE),
        ("always madvise [never]\n", "2097152\n", 0),
        ("always [madvise] never\n", str(512 << 20), 0),  # of arm64 with pages of 64 KiB
        ("always [madvise] never\n", "much", 0),
        (None, None, 0),
    ],
)
def test_what_the_system_says(
    enabled: str | None,
    size: str | None,
    page: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    real = PAGE_BYTES.__wrapped__
    monkeypatch.setattr(huge_pages, "_FOLDER", tmp_path)
    for name, text in (("enabled", enabled), ("hpage_pmd_size", size)):
        if text is not None:
            (tmp_path / name).write_text(text)
    assert real() == page


def _mapped() -> int:
    """The bytes of this process's address space."""
    return int(Path("/proc/self/statm").read_text().split()[0]) * mmap.PAGESIZE
