"""MXNet's `.params`: files of the real versions, files by hand, damaged ones; see data/mxnet."""

import io
import random
import struct
import tracemalloc
import zipfile

import ml_dtypes
import numpy as np
import pytest

from tests.support.paths import DATA
from tests.support.repeating import seeds
from upconv.errors import ArgumentError, DTypeError, FileError, ModelError, UpconvError
from upconv.mxnet.params import read_arrays, read_params, write_params

STORED = DATA / "mxnet"
ONES = [[1, 2, 3], [4, 5, 6]]
TYPES = ("float32", "float64", "float16", "uint8", "int32", "int8", "int64", "bool")
IN_NP_SHAPE = {
    "scalar": np.float32(3.5),
    "none": np.zeros((0, 3), np.float32),
    "ones": np.array(ONES, np.float32),
    "bool": np.array([True, False]),
}
OLD = {"arg:a": np.array(ONES, np.float32), "h": np.ones(1, np.float16)}
CONTENTS = {
    "dict": {
        **{f"arg:{kind}": np.array(ONES).astype(kind) for kind in TYPES},
        "aux:é": np.array([-1.5], np.float32),
        "": np.array([7], np.float32),
    },
    "list": {"0": np.array(ONES, np.float32), "1": np.array([8], np.int32)},
    "empty": {},
    "sparse": {
        "rows": np.array([[1, 2], [0, 0], [0, 0], [3, 4], [0, 0]], np.float32),
        "csr": np.array([[1, 0, 0, 0], [0, 0, 0, 0], [0, 3, 2, 0]], np.float16),
        "rows0": np.zeros((3, 2), np.float32),
        "csr0": np.zeros((2, 3), np.float32),
    },
    "np": IN_NP_SHAPE,
    "np2": IN_NP_SHAPE,
    "archive2": IN_NP_SHAPE,
    "first": OLD,
    "oldest": OLD,
}
"""What is in each file of data/mxnet/params, by its name."""


def alike(got: dict[str, np.ndarray], wanted: dict[str, np.ndarray]) -> None:
    assert list(got) == list(wanted)
    for name, array in wanted.items():
        assert type(got[name]) is np.ndarray
        assert got[name].dtype == array.dtype, name
        assert got[name].flags.writeable
        np.testing.assert_array_equal(got[name], array, name)


@pytest.mark.parametrize("name", CONTENTS)
def test_files_of_the_real_mxnet(name):
    alike(read_params(STORED / "params" / f"{name}.params"), CONTENTS[name])


def test_each_version_of_the_format_is_among_them():
    magics = {}
    for name in CONTENTS:
        data = (STORED / "params" / f"{name}.params").read_bytes()
        magics[name] = data[:2] if name in ("empty", "archive2") else data[24:28][::-1].hex()
    assert magics == {
        **dict.fromkeys(("dict", "list", "sparse"), "f993fac9"),
        **dict.fromkeys(("np", "np2"), "f993faca"),
        "first": "f993fac8",
        "oldest": "00000002",
        "empty": b"\x12\x01",
        "archive2": b"PK",
    }


@pytest.mark.parametrize("model", ["dcgan", "fcn", "unet", "vocoder", "gluon"])
def test_what_mxnet_wrote_is_written_again_byte_by_byte(model, tmp_path):
    path = STORED / "models" / f"{model}-0000.params"
    write_params(tmp_path / "again", read_params(path))
    assert (tmp_path / "again").read_bytes() == path.read_bytes()


@pytest.mark.parametrize("name", ["dict", "np", "np2"])
def test_so_are_files_of_arrays(name, tmp_path):
    path = STORED / "params" / f"{name}.params"
    write_params(tmp_path / "again", CONTENTS[name])
    assert (tmp_path / "again").read_bytes() == path.read_bytes()


def test_numpy_semantics_are_chosen_for_what_needs_them(tmp_path):
    ones = np.ones((2, 3), np.float32)
    for number, (arrays, np_shape, magic) in enumerate(
        (
            ({"a": ones}, False, 0xF993FAC9),
            ({"a": ones}, True, 0xF993FACA),
            ({"a": ones, "b": np.float32(1)}, False, 0xF993FACA),
            ({"a": ones, "b": ones[:0]}, False, 0xF993FACA),
        )
    ):
        write_params(tmp_path / str(number), arrays, np_shape=np_shape)
        data = (tmp_path / str(number)).read_bytes()
        assert struct.unpack_from("<I", data, 24) == (magic,)
        alike(read_params(tmp_path / str(number)), {k: np.asarray(v) for k, v in arrays.items()})


def test_round_trips_of_every_type_and_order(tmp_path):
    kinds = [*TYPES, "int16", "uint16", "uint32", "uint64"]
    arrays = {kind: np.arange(24).reshape(2, 3, 4).astype(kind) for kind in kinds}
    turned = {name: array.T[::-1] for name, array in arrays.items()}
    turned["swapped"] = np.arange(3.0).astype(">f8")
    write_params(tmp_path / "file", turned)
    alike(read_params(tmp_path / "file"), turned | {"swapped": np.arange(3.0)})
    halves = np.array([[1.5, -2, 0], [np.inf, 3e38, 1e-40]], ml_dtypes.bfloat16)
    write_params(tmp_path / "bfloat16", {"a": halves, "b": halves[0, 0]})
    wide = halves.astype(np.float32)
    alike(read_params(tmp_path / "bfloat16"), {"a": wide, "b": wide[0, 0].reshape(())})


# ------------------------------------------------------------------------------------ by hand


def shape(*sizes: int) -> bytes:
    return struct.pack(f"<i{len(sizes)}q", len(sizes), *sizes)


def dense(kind: int = 0, *sizes: int, data: bytes, magic: int = 0xF993FAC9) -> bytes:
    return struct.pack("<Ii", magic, 0) + shape(*sizes) + struct.pack("<iii", 1, 0, kind) + data


def listed(*arrays: bytes, names: tuple[bytes, ...] = (b"a",), head: int = 0x112) -> bytes:
    named = b"".join(struct.pack("<Q", len(name)) + name for name in names)
    first = struct.pack("<QQQ", head, 7, len(arrays))  # the second is ignored
    return first + b"".join(arrays) + struct.pack("<Q", len(names)) + named


def sparse(storage: int, stored: bytes, whole: bytes, *aux: tuple[bytes, bytes]) -> bytes:
    about = b"".join(struct.pack("<i", 6) + sizes for sizes, _ in aux)
    head = struct.pack("<Ii", 0xF993FAC9, storage) + stored + whole + struct.pack("<iii", 1, 0, 3)
    return head + about + bytes(range(1, 4)) + b"".join(values for _, values in aux)


def longs(*values: int) -> tuple[bytes, bytes]:
    return shape(len(values)), struct.pack(f"<{len(values)}q", *values)


def rows(sizes: bytes, *index: int) -> bytes:
    return listed(sparse(1, shape(3), sizes, longs(*index)))


def columns(sizes: bytes, ends: tuple[int, ...], *index: int) -> bytes:
    return listed(sparse(2, shape(3), sizes, longs(*ends), longs(*index)))


FOUR = np.arange(4, dtype="<f4").tobytes()
GOOD = {
    "device": (listed(dense(0, 4, data=FOUR).replace(shape(4) + b"\1", shape(4) + b"\2")), "<f4"),
    "bool": (listed(dense(7, 4, data=b"\0\1\2\xff")), "?"),
    "bfloat16": (listed(dense(12, 4, data=b"\0\0\x80\x3f\0\x40\x40\x40")), "<f4"),
    "uint16": (listed(dense(9, 4, data=np.arange(4, dtype="<u2").tobytes())), "<u2"),
    "rows, any order": (rows(shape(4), 3, 1, 2), "|u1"),
}


@pytest.mark.parametrize("kind", GOOD)
def test_files_by_hand_that_mxnet_reads_so(kind, tmp_path):
    data, dtype = GOOD[kind]
    (tmp_path / "file").write_bytes(data)
    wanted = {"bool": [False, True, True, True], "rows, any order": [0, 2, 3, 1]}
    alike(read_params(tmp_path / "file"), {"a": np.array(wanted.get(kind, range(4)), dtype)})


BAD = {
    "nothing": (b"", "the header, byte 0: the file ends, 24 bytes are missing"),
    "other header": (listed(head=0x113, names=()), "no list of arrays starts here"),
    "many arrays": (struct.pack("<QQQ", 0x112, 0, 1 << 60), "array 1 of 1152921504606846976"),
    "type 13": (listed(dense(13, 4, data=FOUR)), "array 1 of 1, byte 56: an element type is 13"),
    "type -1": (listed(dense(-1, 4, data=FOUR)), "an element type is -1"),
    "storage -1": (listed(struct.pack("<Ii", 0xF993FAC9, -1)), "the storage is -1"),
    "storage 3": (listed(struct.pack("<Ii", 0xF993FAC9, 3)), "the storage is 3"),
    "no value": (listed(struct.pack("<Iii", 0xF993FAC9, 0, 0)), "an array has 0 axes"),
    "none": (listed(struct.pack("<Iii", 0xF993FACA, 0, -1)), "an array has -1 axes"),
    "33 axes": (listed(struct.pack("<I", 33)), "an array has 33 axes"),
    "size -1": (listed(dense(0, -1, -4, data=FOUR)), r"an array has the shape \(-1, -4\)"),
    "large": (listed(dense(0, 1 << 40, data=FOUR)), "the file ends, 4398046511104 bytes are"),
    "product of 2**64": (listed(dense(0, 1 << 32, 1 << 32, data=FOUR)), "an array has the shape"),
    "large but empty": (listed(dense(0, 0, 1 << 62, data=b"")), "an array has the shape"),
    "sparse of version 3": (listed(struct.pack("<Ii", 0xF993FACA, 1)), "the storage is 1"),
    "two names": (listed(dense(0, 4, data=FOUR), names=(b"a", b"b")), "2 names for 1 arrays"),
    "same name": (listed(*[dense(0, 4, data=FOUR)] * 2, names=(b"a", b"a")), "the same name"),
    "no text": (listed(dense(0, 4, data=FOUR), names=(b"\xff",)), "the names, byte .*utf-8"),
    "long name": (listed(dense(0, 4, data=FOUR))[:-9] + b"\xff" * 9, "the names"),
    "more": (listed(dense(0, 4, data=FOUR)) + b"\0", "more data follows in the file"),
    "large rows": (rows(shape(1 << 40), 0, 1, 2), "bytes expands to 1099511627776"),
    "row beyond": (rows(shape(4), 1, 2, 4), "do not fit each other"),
    "row below": (rows(shape(4), -1, 2, 3), "do not fit each other"),
    "two rows": (rows(shape(4), 1, 2), "do not fit each other"),
    "wider rows": (rows(shape(4, 2), 1, 2, 3), "do not fit each other"),
    "column beyond": (columns(shape(2, 3), (0, 1, 3), 0, 1, 3), "do not fit each other"),
    "falling ends": (columns(shape(3, 3), (0, 3, 2, 3), 0, 1, 2), "do not fit each other"),
    "ends that wrap": (columns(shape(3, 3), (0, 2**63 - 1, -2, 3), 0, 1, 2), "do not fit each"),
    "ends of two": (columns(shape(2, 3), (0, 1, 2), 0, 1, 2), "do not fit each other"),
    "csr of rank 1": (columns(shape(3), (0, 1, 2, 3), 0, 1, 2), "do not fit each other"),
    "float indices": (
        rows(shape(4), 1, 2, 3).replace(b"\6\0\0\0\1\0\0\0", b"\0\0\0\0\1\0\0\0"),
        "not lists of int32 or int64",
    ),
}


def archive(name: str = "a.npy", method: int = zipfile.ZIP_STORED, data: bytes = b"") -> bytes:
    whole = io.BytesIO()
    with zipfile.ZipFile(whole, "w", method) as file:
        file.writestr(name, data)
    return whole.getvalue()


def npy(header: str, data: bytes = b"") -> bytes:
    text = (header + "\n").encode()
    return b"\x93NUMPY\1\0" + struct.pack("<H", len(text)) + text + data


HEADER = "{{'descr': '{}', 'fortran_order': {}, 'shape': {}, }}"
BAD_ARCHIVES = {
    "pickle": (archive(data=npy(HEADER.format("|O", False, "(1,)"), b"x" * 8)), "not in list"),
    "large archive": (
        archive(data=npy(HEADER.format("<f8", False, "(99999999999,)"))),
        "bytes are missing",
    ),
    "short": (archive(data=npy(HEADER.format("<f8", False, "(2,)"), b"x" * 15)), "are missing"),
    "long": (archive(data=npy(HEADER.format("<f8", False, "(1,)"), b"x" * 9)), "has more bytes"),
    "long number": (archive(data=npy(HEADER.format("<f8", False, f"({'9' * 998},)"))), "missing"),
    "turned": (archive(data=npy(HEADER.format("<f8", True, "()"), b"x" * 8)), "not a .npy of"),
    "code": (archive(data=npy("__import__('os')")), "not a .npy of"),
    "text": (archive("a.txt", data=b"text"), "not a .npy"),
    "bomb": (archive(method=zipfile.ZIP_DEFLATED, data=bytes(1 << 24)), "bytes expands to"),
    "method": (archive(method=zipfile.ZIP_BZIP2, data=npy("")), "not a .npy of"),
    "torn": (archive(data=npy(HEADER.format("<f8", False, "()"), b"x" * 8))[:-4], "not a zip file"),
}


@pytest.mark.parametrize("kind", [*BAD, *BAD_ARCHIVES])
def test_damage_is_one_error_that_says_where(kind, tmp_path):
    data, message = (BAD | BAD_ARCHIVES)[kind]
    (tmp_path / "net.params").write_bytes(data)
    with pytest.raises(ModelError, match=rf"'.*net\.params', .*{message}"):
        read_params(tmp_path / "net.params")


def test_compressed_archives_are_read(tmp_path):
    np.savez_compressed(tmp_path / "net.npz", **{"arg:a": np.arange(3), "b": np.ones((2, 2))})
    wanted = {"arg:a": np.arange(3), "b": np.ones((2, 2))}
    alike(read_params(tmp_path / "net.npz"), wanted)


@pytest.mark.parametrize("name", ["dict", "sparse", "np", "oldest", "archive2"])
def test_every_beginning_of_a_file_is_refused(name):
    whole = (STORED / "params" / f"{name}.params").read_bytes()
    for length in range(len(whole)):
        with pytest.raises(ModelError):
            read_arrays(whole[:length])


@pytest.mark.parametrize("name", ["dict", "sparse", "np", "oldest", "archive2"])
def test_whatever_bytes_change_it_is_read_or_refused_in_little_memory(name):
    whole, refused = (STORED / "params" / f"{name}.params").read_bytes(), 0
    tracemalloc.start()
    try:
        for seed in seeds(400):
            rng, data = random.Random(f"{name} {seed}"), bytearray(whole)
            for _ in range(rng.randint(1, 3)):
                data[rng.randrange(len(data))] = rng.choice((0, 1, 0x7F, 0xFF, rng.randrange(256)))
            try:
                read_arrays(bytes(data))
            except UpconvError:
                refused += 1
        assert tracemalloc.get_traced_memory()[1] < 4 << 20
    finally:
        tracemalloc.stop()
    assert refused > 100


# ------------------------------------------------------------------------------------- manners


def test_what_cannot_be_written_is_refused_before_anything_is(tmp_path):
    path, ones = tmp_path / "net.params", np.ones(2, np.float32)
    for values in (np.ones(2, complex), np.array(["a"]), np.array([None])):
        with pytest.raises(DTypeError, match=r"'b'\.dtype is"):
            write_params(path, {"a": ones, "b": values})
    for name in ("a\0b", "\ud800", 3):
        with pytest.raises(ArgumentError, match="arrays is named"):
            write_params(path, {name: ones})
    assert list(tmp_path.iterdir()) == []


def test_files_are_overwritten_on_demand_alone(tmp_path):
    path = tmp_path / "net.params"
    write_params(path, {"a": np.ones(2, np.float32)})
    with pytest.raises(FileError, match="exists"):
        write_params(path, {})
    write_params(path, {}, force=True)
    assert read_params(path) == {}
    assert [each.name for each in tmp_path.iterdir()] == ["net.params"]


def test_what_is_no_file_is_refused(tmp_path):
    with pytest.raises(FileError, match="is a directory"):
        read_params(tmp_path)
    with pytest.raises(FileError, match="Cannot read"):
        read_params(tmp_path / "missing")
