"""The processor figures in all cost models: one table, by class of processor.

A class is a vector width: processors of one width differ less than tiles of different shapes. Xeons
with AMX are a separate class, because their third-level cache is far from each core. The defaults
below are for 64-byte vectors. `_TABLE` lists the figures in which other classes differ.

Figures are cycles of one thread unless stated otherwise. Most were fitted on a Xeon with AMX, a
Zen 5 (21 November 2026) and a Zen 4 (22 and 23 November). Limits on code, tables and scratch memory
are in the kernels to which they apply. libdnnl_times.py has libdnnl's times relative to this
engine, by class of layers.

The tables are named tuples. Creating seven frozen dataclasses of this length would delay a first
call by 6 ms, seven named tuples by 1 ms (Zen 4, 2026-11-23).
"""

from __future__ import annotations

from typing import NamedTuple


class Packing(NamedTuple):
    """Figures for packing weights, and for the border fill."""

    number: float = 0.55
    """Per number, with 64-byte vectors. On a Zen 4 packing takes 0.3 to 0.4 ns a number for up to
    12 MB, 0.5 for 17 MB, 0.8 for more than the third-level cache; half a cycle is 0.28 ns."""
    streamed: float = 0.9  # in addition, per number of a weight that fills the third-level cache
    gathered: float = 1.0
    """Factor for the positions kernel, which gathers weights whose results are far apart. A number
    takes 3.5 to 4.2 cycles, but 1.3 to 1.6 if it is transposed (Xeon, 2026-11-27)."""
    transformed: float = 1.0  # a number of a Winograd weight, relative to other numbers
    narrow: float = 0.0
    """If a Winograd weight has fewer taps than lanes, its transposed squares lack columns: the
    fraction of these that counts as if they were there."""
    cast: float = 0.25  # rounding a number of an operand to bfloat16, in a copy
    border: float = 10.0  # an output that no input reaches, written by NumPy


class Positions(NamedTuple):
    """Figures for the positions kernel."""

    loop: int = 60  # start and end of a tile's loops
    fetch: float = 1.5
    """Waiting for one shift's inputs: 1.4 to 2.5 for tiles of 16 to 26 accumulators on ten layers
    (Xeon). It favours larger tiles, which are 5 to 7 % faster if channels fill them."""
    store: int = 20  # finding the destination of a tile's results
    phase: int = 2  # storing a phase of a vector of results
    piece: float = 3.0  # storing one position's results, if the tile does not have all phases
    stage: int = 6  # a row's end in a tile that is stored through the stage, per channel
    pack: int = 3  # packing a vector of inputs
    odd: float = 0.08
    """Part of the time that tiles lose at row ends if their number of vectors is no power of two: a
    guess, because row lengths vary within a class of layers. Image rows are often short, with
    lengths that a power of two divides."""
    wide: float = 0.01  # part of the time lost there per vector after the first, with one axis
    wide_image: float = 0.04  # the same with several axes
    shortfall: float = 1.05
    """Factor of the prediction, which is too low for short rows relative to the channels kernel's.
    It ranks the two as measured on 22 decoder layers (Zen 5, one core, interleaved)."""
    reads: int = 6
    """Maximum reads of an input for which reading in place is faster than packing. On 20 layers
    (Zen 4) it is 1.04 to 1.13 times as fast with 3 to 5 reads of up to 4 MiB, 0.7 to 1.07 times
    with larger inputs, 0.5 to 1.05 times with 10 to 20 reads."""
    read_l2: int = 4  # maximum size of such an input, in second-level caches
    l2_input: float = 1 / 2  # part of the second-level cache for a group's input
    records: int = 1 << 17
    """Maximum bytes of all rows' records: outside the caches they are slow to read (1.1 MB took 0.3
    of a volume's time, Zen 4)."""


class Channels(NamedTuple):
    """Figures for the channels kernel."""

    tile: int = 60  # start and end of a tile
    tap: int = 20  # finding a tap's inputs
    point: int = 1  # in addition, for each point in a tile
    broadcast: float = 0.08  # a point's input channel, in addition to its products
    reads: float = 1.5
    """Maximum reads of a 16-bit input that take less time in place than with one cast for all. One
    takes 0.8 of that time, two to nine 1.0 to 1.33 times (Xeon, with AVX2 and AVX-512)."""
    dot_latency: int = 8  # from a dot product to the next one in the same register
    depthwise_tap: int = 10  # a tap of a depthwise tile
    depthwise_point: float = 0.75  # a point of such a tap
    depthwise_product: float = 0.4  # a vector of such a point
    depthwise: float = 2.5
    """Factor of the cycles from these figures, which rank tiles well: depthwise layers take 2.2 to
    3.7 times as long on a Zen 4, where memory limits them."""
    clearly: float = 0.97
    """A later cut (lanes.py) must take less than this part of an earlier cut's cycles."""
    transpose: float = 0.7  # transposing a number of channels-first data
    l2_inputs: float = 1 / 4  # part of the second-level cache for a run's inputs
    l2_weights: float = 3 / 16
    """Part of it for a pass's weights. The next pass's weights are prefetched meanwhile, and both
    leave room for inputs."""


class Planes(NamedTuple):
    """Figures for the depthwise kernel, fitted on a Zen 4."""

    tile: int = 30  # start and end of a tile
    load: float = 1.5  # loading a vector of an input line
    cut: float = 0.3  # cutting a vector from two, for each shift
    line: float = 1.5  # a line of channels-last data, which needs a separate address
    weight: float = 1.5  # factor of a channels-last product whose weight is not in a register
    result: int = 4  # storing a vector of results
    channels_last: float = 0.5
    """Factor of the figures above for channels-last data: measured 0.5 to 0.6."""
    channels_first: float = 0.8
    """Factor for channels-first data: measured 0.35 to 0.5 in caches, 0.6 to 1.2 in memory."""
    rows: int = 7  # maximum rows of a tile: with 8, layers of nine taps take 1.1 times as long
    filled: float = 0.4
    """Minimum row length, in vectors: below it the channels kernel is as fast."""
    band_bytes: int = 1 << 16  # bytes of a job's results


class Winograd(NamedTuple):
    """Figures for Winograd's algorithm, fitted to 920 choices of tiles on a Zen 4."""

    pack: float = 5.0  # packing a vector of operands, per output of a tile
    pack_rows: float = 11.0  # the same for channels-first data, whose rows are transposed
    input: float = 0.6  # storing a vector of a transformed operand
    input_addition: float = 0.1  # an addition in the operand transform
    result: float = 0.4  # loading a vector of products
    result_addition: float = 0.05  # an addition in the result transform
    axes: float = 1.0
    """Factor of `input` and `result` with several axes and a strided operand."""
    store: int = 13  # moving a vector of results to the output
    store_sharing: int = 30  # the same if many rows share a set in the second-level cache
    set_bytes: int = 1 << 17  # rows a multiple of this apart share one: 2048 sets of one line
    stream: float = 2.6  # a vector of weights from the third-level cache, during products
    weight: float = 1.2  # the part of reading such a vector that products do not hide
    memory: float = 14.0  # a vector of weights from memory: 12 to 20 GB/s for one core
    strided_line: float = 0.0
    """A line of a strided operand, in addition to packing it. Each of the operand's phases has at
    most every second position."""
    register_tile: float = 4.0  # start and end of a register tile
    job: float = 500.0  # start and end of a job
    point: int = 16  # a point's work in addition to its products, by which forms are ranked
    l2_blocks: float = 3 / 4  # part of the second-level cache that blocks may fill
    overflow: float = 0.1  # part of the time added by each doubling beyond the second-level cache
    margin: float = 1.12  # direct sums must take more than this many times the cycles
    axis: float = 1.0  # factor of that margin per axis after the first, if strided
    prepared_margin: float = 1.0
    """The margin for a network, which chooses only once. With weights from memory, direct sums took
    2.0 times as long as predicted, and Winograd's 1.8 times (HiFi-GAN at two frames, one thread,
    Zen 4). Its pushes take 0.97 of the time; none of fifteen networks takes longer (2026-11-26)."""
    few: int = 8  # with fewer reduced channels than this and several axes, the margin is larger
    few_margin: float = 1.6
    """That margin. The model underestimates these transforms: they took 1.1 to 5 times as long as
    predicted on 12 layers (Zen 4)."""
    products: int = 4_000_000
    """Minimum multiply-adds: with fewer, choosing tiles takes longer than some runs."""
    prepared_products: int = 1_000_000
    """The same for a network, which chooses only once: layers of 3 million took 0.6 to 0.85 times
    as long as direct sums (HiFi-GAN at two frames, Zen 4, 2026-11-24)."""


class WeightGrad(NamedTuple):
    """Figures for the weight gradient's kernel, fitted on a Zen 4."""

    pack: float = 1.2  # packing a channels-first number from beyond the second-level cache
    pack_last: float = 0.5  # the same for channels-last data
    pack_row: float = 10.0  # a row of a channels-last panel, in addition to its numbers
    apart: float = 2.0  # a line that is read in place, in addition to a panel's line
    pair: int = 128  # bytes that processors fetch together
    segment: int = 15  # a segment, in addition to its positions
    result: float = 0.1  # a number in a finished tile
    result_transposed: float = 1.5  # the same if lanes are not adjacent in the result
    l2_panels: float = 1 / 2  # part of the second-level cache for one panel of each operand
    l2_sums: float = 1 / 4  # part of it for a job's sums
    tile_product: float = 27.0
    """A product of tile registers (16 by 16 channels, 32 positions) with its loads. This and
    the figures below were fitted on a Xeon with AMX (2026-11-27)."""
    tile_sums: float = 45.0  # loading and storing a tile of sums
    tile_rows: float = 0.7
    """Packing a number of g for a tile's rows, from beyond the second-level cache."""
    tile_stride: float = 0.1
    """In addition, times the stride, for channels-first data: a phase has one number per stride."""
    tile_pairs: float = 0.25  # packing a number of x for a tile's columns
    tile_result: float = 0.8  # a finished number
    tile_set: float = 0.3  # adding a number from another set to it


class Tiles(NamedTuple):
    """Figures for the tile kernel, fitted on a Xeon with AMX (27 November 2026)."""

    product: float = 30  # a product of two tiles
    load: float = 14  # a tile from the first-level cache
    latency: float = 52  # from a product to the next one into the same tile
    far_load: float = 34  # a tile from the second-level cache
    crossing: float = 45  # in addition to a load, if all rows of the tile cross cache lines
    tile: float = 60  # start and end of a register tile
    line: float = 6  # moving 16 of a position's results from the stage to the output
    pack: float = 0.4  # a number of the operand, packed from channels-last data
    pack_first: float = 0.5  # the same from channels-first data
    leave_first: float = 1.1  # a number of a channels-first result, transposed back
    reads: int = 8
    """Maximum reads of an input for which reading in place is faster than packing, if its rows
    cross cache lines: with 8 reads 0.88 to 1.09 of the time, with 16 reads 1.2 to 1.4."""
    l1_working: float = 0.97
    """Part of the first-level cache that inputs and weights in use may fill: 2 x 1 tiles that fill
    0.95 are 1.2 times as fast as 4 x 1; those that fill it are 0.9 times as fast as 2 x 2."""
    l2_weights: float = 1 / 4
    """Part of the second-level cache for the weights that one register tile's inputs use before the
    next tile. With inputs of 128 KB, read in place, this order took 0.75 times as long as all tiles
    for one block of outputs before the next block (256 outputs of 128 channels, k4 s4)."""


class Im2col(NamedTuple):
    """Figures for the im2col kernel, fitted on a Zen 3 (28 November 2026)."""

    tile: float = 30.0  # start and end of a tile, per chunk
    gather: float = 2.5  # copying an input
    result: float = 3.0  # storing a result
    weight: float = 0.5  # a weight from the third-level cache


class Costs(NamedTuple):
    """The figures for one class of processors: a core's, and each kernel's."""

    adds: float = 2  # vector multiply-adds per cycle
    loads: float = 2  # vector loads per cycle
    latency: float = 4  # from a multiply-add to the next one in the same register
    step: float = 0.5  # an iteration of a tile's loop, in addition to its work
    unaligned: float = 2.0  # how many loads a load across two cache lines counts as
    line: float = 1.0  # how many loads prefetching a vector of inputs counts as
    weights: float = 2.2  # a vector of weights from the second-level cache, each line once
    stream: float = 17  # bytes of panels read per cycle, in sequence
    masked: float = 1  # factor of a multiply-add under a mask
    l3: int = 24 << 20  # bytes that remain in the third-level cache
    packing: Packing = Packing()
    positions: Positions = Positions()
    channels: Channels = Channels()
    planes: Planes = Planes()
    winograd: Winograd = Winograd()
    weight_grad: WeightGrad = WeightGrad()
    tiles: Tiles = Tiles()
    im2col: Im2col = Im2col()


_MESH = "AVX-512 with a cache mesh"
_TABLE: dict[int | str, Costs] = {
    64: Costs(),
    # A Xeon with AMX, whose third-level cache is large and far (27 November 2026). Packing takes
    # 1.3 to 1.5 cycles a number. With `strided_line` and `few`, three layers use direct sums, which
    # take 0.42 to 0.68 of the time. `axes` and `axis` were fitted to strided input gradients of
    # images and volumes: 700 of them took 1.07 times as long as with the best choice on one thread,
    # 1.11 times on two. The third-level cache delivers a line in 2.2 ns, hence `stream`: with
    # it pushes of four frames of HiFi-GAN take 0.87 (one thread) and 0.97 of the time.
    _MESH: Costs(
        packing=Packing(number=1.4, gathered=2.7),
        winograd=Winograd(strided_line=28, axes=12, few=16, axis=1.16, stream=6),
    ),
    # A Zen 4 restricted to AVX2 (22 November 2026). `unaligned` = 1.5 would choose tiles of one
    # vector, which take 1.4 times as long for fcn8s_final. `weights` = 1.1 (half) would make five
    # of eight layers 2 to 6 % faster, and two that read many weights 4 to 17 % slower. Packing and
    # `line` were measured on a Zen 3 (28 November 2026): 2.0 to 3.2 cycles a number, 6.6 if squares
    # of Winograd weights have 3 columns. A vector of Winograd weights has half the bytes, and takes
    # half the time or less: the choice for 14 layers with more weights than the third-level cache
    # holds takes 1.10 times as long as the best one, not 1.3 times (Zen 3, 29 November 2026).
    32: Costs(
        masked=2,
        packing=Packing(number=1.25, transformed=0.75, narrow=1.0),
        planes=Planes(line=3.0),
        winograd=Winograd(stream=1.3, weight=0.6, memory=6.0),
    ),
}


def costs_of(vector_bytes: int, *, mesh: bool = False) -> Costs:
    """Return the figures for a vector width in bytes, or if `mesh` for Xeons with AMX."""
    if mesh:
        return _TABLE[_MESH]
    return _TABLE[max(32, vector_bytes)]  # nothing was fitted for SSE2 and NEON


def dots_of(name: str) -> float:
    """Return the bfloat16 products that AVX512-BF16 computes in the time of one float32 product.

    A Xeon with AMX (2026-11-21, 24 accumulators in registers, 512 bits) issues a dot product, which
    has two products per lane, every 2.0 cycles, but two multiply-adds every cycle. A Zen 4 issues
    equally many of both: 1.3 to 2.0 times the speed of widened inputs on 20 layers (2026-11-22).
    Unknown processors are assumed to be slow. `name` is LLVM's name for a processor.
    """
    return 2.0 if name.startswith("znver") else 0.5
