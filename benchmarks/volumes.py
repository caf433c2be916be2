"""A volume larger than memory, upsampled from zarr to zarr, and the memory that this takes.

    python benchmarks/volumes.py [--folder .] [--gigabytes 4] [--threads 2]

Writes a float32 volume of 1/8 of --gigabytes in chunks of 128 x 128 x 128, upsamples it by 2 along
every axis (4 x 4 x 4 taps, padding 1), and stores the result in chunks of 256 x 256 x 256. The work
is done in a separate process, whose peak resident memory is printed. Some blocks of the result are
compared with the same blocks computed alone. The folder is deleted afterwards.
"""

from __future__ import annotations

import argparse
import multiprocessing
import resource
import shutil
import tempfile
import time
from pathlib import Path

import numpy as np

_CHUNK = 128


def write(path: Path, sizes: tuple[int, ...]) -> None:
    """Write random numbers, a chunk at a time."""
    import zarr

    stored = zarr.open(
        str(path), mode="w", shape=(1, 1, *sizes), chunks=(1, 1, *[_CHUNK] * 3), dtype="f4"
    )
    rng = np.random.default_rng(0)
    for start in range(0, sizes[0], _CHUNK):
        part = rng.standard_normal((1, 1, min(_CHUNK, sizes[0] - start), *sizes[1:]), np.float32)
        stored[:, :, start : start + _CHUNK] = part


def weight() -> np.ndarray:
    return np.random.default_rng(1).standard_normal((1, 1, 4, 4, 4), np.float32)


def upsample(source: str, target: str, threads: int, reports: multiprocessing.Queue) -> None:
    """Upsample the volume, lazily until `to_zarr`, and report times and memory."""
    import dask
    import dask.array as da

    import upconv.dask

    start = time.perf_counter()
    y = upconv.dask.conv_transpose(da.from_zarr(source), weight(), stride=2, padding=1)
    built = time.perf_counter() - start
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with dask.config.set(scheduler="threads", num_workers=threads):
        y.to_zarr(target)
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    reports.put(
        (built, time.perf_counter() - start, before * 1024, most * 1024, y.nbytes, y.npartitions)
    )


def checked(source: str, target: str) -> int:
    """Check that blocks across chunks equal the same layer on their inputs; return their number."""
    import zarr

    import upconv
    from upconv.engines.ordered_sums import invariant_engine
    from upconv.geometry import Axis

    x, y = zarr.open(source, mode="r"), zarr.open(target, mode="r")
    whole = [Axis(n, 4, 2, 1, 1, 1) for n in x.shape[2:]]
    problem = upconv.explain(x.shape, (1, 1, 4, 4, 4), stride=2, padding=1).problem
    engine = invariant_engine(problem)
    rng = np.random.default_rng(2)
    for _ in range(8):
        spans = []
        for axis in whole:
            low = int(rng.integers(0, axis.out - 40))
            spans.append((low, low + 40))
        parts = [axis.part(*span) for axis, span in zip(whole, spans, strict=True)]
        reads = tuple(slice(r.start, r.stop) for _, r in parts)
        crops = tuple((axis.crop_begin, axis.crop_end) for axis, _ in parts)
        expected = upconv.conv_transpose(
            np.asarray(x[(slice(None), slice(None), *reads)]), weight(),
            stride=2, padding=crops, engine=engine,
        )  # fmt: skip
        place = tuple(slice(*span) for span in spans)
        block = np.asarray(y[(slice(None), slice(None), *place)])
        assert expected.tobytes() == block.tobytes()
    return 8


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--folder", type=Path, default=None)
    parser.add_argument("--gigabytes", type=float, default=4, help="size of the result")
    parser.add_argument("--threads", type=int, default=2)
    asked = parser.parse_args()
    planes = max(1, round(asked.gigabytes * 1e9 / 32 / (512 * 512) / _CHUNK)) * _CHUNK
    folder = Path(tempfile.mkdtemp(prefix="upconv-volumes-", dir=asked.folder))
    try:
        source, target = folder / "x.zarr", folder / "y.zarr"
        write(source, (planes, 512, 512))
        context = multiprocessing.get_context("spawn")
        reports = context.Queue()
        work = context.Process(
            target=upsample, args=(str(source), str(target), asked.threads, reports)
        )
        work.start()
        built, total, before, most, nbytes, tasks = reports.get()
        work.join()
        print(f"volume {planes} x 512 x 512, {planes * 512 * 512 * 4 / 1e9:.2f} GB in zarr")
        print(f"result {nbytes / 1e9:.2f} GB in {tasks} chunks, graph built in {built:.2f} s")
        print(f"computed and stored in {total:.1f} s, {asked.threads} threads")
        print(f"peak resident memory {most / 1e9:.2f} GB, of which {before / 1e9:.2f} GB before")
        print(
            f"{checked(str(source), str(target))} blocks across chunks equal the layer bit for bit"
        )
    finally:
        shutil.rmtree(folder)


if __name__ == "__main__":
    main()
