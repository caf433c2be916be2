"""`upconv mxnet run` on untrusted arrays: a message and exit code 2, whatever they hold."""

import io
import os
import struct
import zipfile

import numpy as np
import pytest

import upconv.mxnet as mx
from tests.support.processes import called, failed

pytest.importorskip("typer", reason="the command line needs typer")

posix = pytest.mark.skipif(os.name != "posix", reason="pipes and limits of POSIX")


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    mx.sym.relu(mx.sym.var("data")).save("net.json")
    return tmp_path


RUN = ["mxnet", "run", "net.json", "-o", "y.npz", "--inputs"]


def test_a_scalar_result_is_called_scalar(folder):
    np.save("x.npy", np.float32(2))
    assert called(*RUN, "x.npy").stdout == b"relu0_output scalar\n"


def test_a_missing_input_is_named(folder):
    assert "no array or shape for data; the inputs are data;" in failed(called(*RUN[:3]), 2)


def npy(header, data=b"", version=b"\x01\x00"):
    text = header if isinstance(header, bytes) else repr(header).encode()
    length = struct.pack("<H" if version[0] == 1 else "<I", len(text))
    return b"\x93NUMPY" + version + length + text + data


def described(shape, descr="<f4"):
    return {"descr": descr, "fortran_order": False, "shape": shape}


def pickled():
    file = io.BytesIO()
    np.save(file, np.array([{}, 1], object), allow_pickle=True)
    return file.getvalue()


def zipped(member, data, claimed=None):
    """An archive of one member, whose unpacked size the table of contents may claim."""
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr(member, data)
        archive.getinfo(member).file_size = claimed or len(data)
    return file.getvalue()


HOSTILE = {
    "empty": (b"", "Cannot read"),
    "text": (b"hello", "neither a .npy nor a .npz"),
    "magic alone": (b"\x93NUMPY", "Cannot read"),
    "header cut off": (npy(described((4,)))[:30], "Cannot read"),
    "data cut off": (npy(described((4,)), b"\0" * 15), "Cannot read"),
    "a trillion elements": (npy(described((10**6, 10**6))), "Cannot read"),
    "more than 2**64": (npy(described((10**18, 10**18))), "Cannot read"),
    "negative": (npy(described((-4, -4)), b"\0" * 64), "Cannot read"),
    "objects": (pickled(), "never unpickled"),
    "header of 3 GB": (b"\x93NUMPY\x02\x00" + b"\xff\xff\xff\xbf", "Cannot read"),
    "nested header": (npy(b"(" * 9000), "Cannot read"),
    "header of code": (npy(b"__import__('os').system('touch owned')"), "Cannot read"),
    "zip cut off": (zipped("x.npy", npy(described((4,)), b"\0" * 16))[:-30], "Cannot read"),
    "zip without arrays": (zipped("x.txt", b"hello"), "neither"),
    "member with objects": (zipped("x.npy", pickled()), "never unpickled"),
    "member that lies": (zipped("x.npy", npy(described((10**12,)))), "Cannot read"),
    "zip bomb": (zipped("x.npy", npy(described((1 << 48,))), 1 << 50), "needs 1 PiB"),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_files_end_in_a_message(folder, name):
    data, words = HOSTILE[name]
    (folder / "bad.npy").write_bytes(data)
    before = sorted(folder.iterdir())
    said = failed(called(*RUN, "bad.npy"), 2)
    assert words in said
    assert "bad.npy" in said
    assert sorted(folder.iterdir()) == before


@pytest.mark.parametrize(
    ("name", "words"),
    [("missing.npy", "No such file"), ("sub", "is a directory"), ("pipe", "not a regular file")],
)
@posix
def test_names_that_are_no_array(folder, name, words):
    (folder / "sub").mkdir()
    os.mkfifo(folder / "pipe")
    assert words in failed(called(*RUN, name), 2)
