"""The figures of processors that all models of cost count with: one table by class of processor.

A class is a width of vectors: processors of one width differ by less than the shapes of tiles do.
Xeons with AMX are one of their own, as their third-level cache is far from each core. The defaults
below are those of 64-byte vectors, and `_TABLE` names what others have instead.

Figures are cycles of one thread, unless their lines say otherwise. Most were fitted on a Xeon with
AMX, a Zen 5 (21 November 2026) and a Zen 4 (22 and 23 November). What stands elsewhere is no figure
of a processor: limits of code, tables and scratch memory stand with the kernel that has them, and
libdnnl_times.py has the times that libdnnl takes beside this engine, by class of layers.

The tables are named tuples. Python makes seven frozen dataclasses of this length in 6 ms, which a
first call would wait for, and seven named tuples in 1 ms (Zen 4, 2026-11-23).
"""

from __future__ import annotations

from typing import NamedTuple


class Packing(NamedTuple):
    """Packing of weights, and border fill."""

    number: float = 0.55
    """A number of 64-byte vectors. On a Zen 4 packing takes 0.3 to 0.4 ns a number for up to 12 MB,
    0.5 for 17, 0.8 for more than the third-level cache holds; half a cycle is 0.28 ns."""
    streamed: float = 0.9  # how much longer a number takes that leaves the caches
    gathered: float = 1.0
    """How many times as long the kernel along positions takes, which gathers, if results lie apart:
    3.5 to 4.2 cycles a number on a Xeon, where transposing takes 1.3 to 1.6 (2026-11-27)."""
    cast: float = 0.25  # rounding a number of an operand to bfloat16, in a copy
    border: float = 10.0  # a number that nothing reaches, which NumPy writes


class Positions(NamedTuple):
    """The spatially vectorised kernel."""

    loop: int = 60  # the beginning and the end of a tile's loops
    fetch: float = 1.5
    """Waiting for the inputs of one shift. Measured on a Xeon, tiles of 16 to 26 accumulators on
    ten layers: 1.4 to 2.5. Larger tiles are 5 to 7 % faster by it where channels fill them."""
    store: int = 20  # finding out where a tile's results go
    phase: int = 2  # storing a phase of a vector of results
    piece: float = 3.0  # storing results of one position, where a tile has some phases only
    stage: int = 6  # a row's end in a tile that goes by way of the stage, per channel
    pack: int = 3  # packing a vector of inputs
    odd: float = 0.08
    """Part of the time lost at rows' ends by tiles whose vectors are no power of two: a guess, as a
    class of layers does not know its rows. Those of images are often short, and of a length that a
    power of two divides."""
    wide: float = 0.01  # part of the time lost there for each vector more than one, with one axis
    wide_image: float = 0.04  # the same with several axes
    shortfall: float = 1.05
    """What the prediction falls short by where rows are short, beside the channels kernel's. With
    it the two are ordered as measured on 22 layers of decoders (Zen 5, one core, interleaved)."""
    reads: int = 6
    """Up to how many reads of an input cost less in place than packing it. On 20 layers (Zen 4), in
    place is 1.04 to 1.13 times as fast with 3 to 5 reads of up to 4 MiB, 0.7 to 1.07 times with
    larger inputs, 0.5 to 1.05 times with 10 to 20 reads."""
    read_l2: int = 4  # how many second-level caches such an input may fill
    l2_input: float = 1 / 2  # part of the second-level cache for the input of a group
    records: int = 1 << 17
    """Bytes of records that list all rows: beyond the caches they are slow to read (1.1 MB of them
    took 0.3 of a volume's time, Zen 4)."""


class Channels(NamedTuple):
    """The channel-vectorised kernel."""

    tile: int = 60  # the beginning and the end of a tile
    tap: int = 20  # finding the inputs of a tap, whatever is done with them
    point: int = 1  # the same for each point of a tile
    broadcast: float = 0.08  # an input channel of a point, beside its products
    reads: float = 2.5
    """Up to how many reads of a 16-bit input take less time in place than a cast for all of them.
    One takes 0.8 of that time, four to nine 1.04 to 1.33 times (Xeon, with AVX2 and AVX-512)."""
    dot_latency: int = 8  # a register's dot product to its next
    depthwise_tap: int = 10  # a tap of a depthwise tile
    depthwise_point: float = 0.75  # a point of such a tap
    depthwise_product: float = 0.4  # a vector of such a point
    depthwise: float = 2.5
    """How many times as long depthwise layers take as these say, which order tiles well: 2.2 to 3.7
    on a Zen 4, where memory is the limit."""
    clearly: float = 0.97
    """Part of the time of longer runs of memory below which shorter ones are taken."""
    transpose: float = 0.7  # transposing a number of data whose channels come first
    l2_inputs: float = 1 / 4  # part of the second-level cache for the inputs of a run
    l2_weights: float = 3 / 16
    """Part of it for the weights of a pass. They and those of the next one on their way leave room
    for inputs."""


class Planes(NamedTuple):
    """The depthwise kernel, fitted on a Zen 4."""

    tile: int = 30  # the beginning and the end of a tile
    load: float = 1.5  # a vector of a line of the input
    cut: float = 0.3  # a vector that is cut from two, for each shift
    line: float = 1.5  # a line of channels-last data, which begins elsewhere
    weight: float = 1.5  # how many times as long a product takes whose weight is no register
    result: int = 4  # a vector of results
    channels_last: float = 0.5
    """Part of these figures that tiles of channels-last data take: 0.5 to 0.6."""
    channels_first: float = 0.8
    """Part that other data's tiles take: 0.35 to 0.5 where caches hold it, 0.6 to 1.2 in memory."""
    rows: int = 7  # rows of a tile at most: with 8, layers of nine taps take 1.1 times as long
    filled: float = 0.4
    """Part of a vector that a row has at least: with less the channels kernel is as fast."""
    band_bytes: int = 1 << 16  # bytes of results that a job makes


class Winograd(NamedTuple):
    """Winograd's algorithm, fitted to 920 choices of tiles on a Zen 4."""

    pack: float = 5.0  # packing a vector of operands, for each output of a tile
    pack_rows: float = 11.0  # the same for channels-first data, whose rows are transposed
    input: float = 0.6  # storing a vector of a transformed operand
    input_addition: float = 0.1  # an addition of the transform of operands
    result: float = 0.4  # loading a vector of products
    result_addition: float = 0.05  # an addition of the transform of results
    axes: float = 1.0
    """How many times as long `input` and `result` take with several axes and a strided operand."""
    store: int = 13  # a vector of results on its way back
    store_sharing: int = 30  # the same where many rows share a set of the second-level cache
    set_bytes: int = 1 << 17  # bytes apart at which rows do: lines of 2048 sets
    stream: float = 2.6  # a vector of weights from the third-level cache, in which products hide
    weight: float = 1.2  # the part of it that products do not hide
    memory: float = 14.0  # a vector of weights from memory, which gives one core some 12 to 20 GB/s
    strided_line: float = 0.0
    """A line of an operand of which each tile reads every second position or fewer, beside packing
    it."""
    register_tile: float = 4.0  # the beginning and the end of a register tile
    job: float = 500.0  # the beginning and the end of a job
    point: int = 16  # work of a point beside its products, to order choices of tiles by
    l2_blocks: float = 3 / 4  # part of the second-level cache that blocks may fill
    overflow: float = 0.1  # part of the time that each doubling beyond the second-level cache adds
    margin: float = 1.12  # part of the cycles that direct sums must exceed
    axis: float = 1.0  # how many times that margin, for each axis after the first, if strided
    prepared_margin: float = 1.0
    """The same for a network, which chooses once. On a Zen 4 direct sums took 2.0 times as long as
    predicted and these 1.8 times, with weights from memory (HiFi-GAN's at two frames, one thread):
    its pushes take 0.97 of the time, and no network of fifteen more time (2026-11-26)."""
    few: int = 8  # fewer channels to sum over than this, along several axes, have a larger margin
    few_margin: float = 1.6
    """That margin. There the model of the transforms thinks too well: they took 1.1 to 5 times as
    long as predicted on 12 layers (Zen 4)."""
    products: int = 4_000_000
    """Multiply-adds with fewer of which choosing tiles takes longer than some runs."""
    prepared_products: int = 1_000_000
    """The same for a network, which chooses once: layers of 3 million took 0.6 to 0.85 of the time
    of direct sums (HiFi-GAN's at two frames, Zen 4, 2026-11-24)."""


class WeightGrad(NamedTuple):
    """The weight gradient's kernel, fitted on a Zen 4."""

    pack: float = 1.2  # packing a number of channels-first data from beyond the second-level cache
    pack_last: float = 0.5  # the same of channels-last data
    pack_row: float = 10.0  # a row of a panel of channels-last data, beside its numbers
    apart: float = 2.0  # how much longer a line takes that is read in place than one of a panel
    pair: int = 128  # bytes that processors fetch together
    segment: int = 15  # a segment, beside its positions
    result: float = 0.1  # a number of a finished tile
    result_transposed: float = 1.5  # the same where lanes do not lie side by side in the result
    l2_panels: float = 1 / 2  # part of the second-level cache for a panel of both operands
    l2_sums: float = 1 / 4  # part of it for the sums of a job
    tile_product: float = 27.0
    """A product of tile registers, of 16 by 16 channels and 32 positions, and its loads. This and
    all below are of a Xeon with AMX (2026-11-27)."""
    tile_sums: float = 45.0  # loading and storing a tile of sums
    tile_rows: float = 0.7
    """Packing a number of g for the rows of a tile, from beyond the second-level cache."""
    tile_stride: float = 0.1
    """The same for each stride of channels-first data, of which a phase has one number."""
    tile_pairs: float = 0.25  # packing a number of x for the columns of a tile
    tile_result: float = 0.8  # a finished number
    tile_set: float = 0.3  # adding a number of another set to it


class Tiles(NamedTuple):
    """The tile kernel, fitted on a Xeon with AMX (27 November 2026)."""

    product: float = 30  # a product of two tiles
    load: float = 14  # a tile from the first-level cache
    latency: float = 52  # a tile's product to its next
    far_load: float = 34  # a tile from the second-level cache
    crossing: float = 45  # what a tile takes longer if all its rows cross lines of the cache
    tile: float = 60  # the beginning and the end of a register tile
    line: float = 6  # a position of 16 results, on its way from the stage to the output
    pack: float = 0.4  # a number of the operand, packed from channels-last data
    pack_first: float = 0.5  # the same from channels-first data
    leave_first: float = 1.1  # a number of a channels-first result, transposed back
    reads: int = 8
    """Up to how many reads of an input take less time in place than packing it, where its rows
    cross lines of the cache: with 8, 0.88 to 1.09 of the time, with 16, 1.2 to 1.4."""
    l1_working: float = 0.97
    """Part of the first-level cache that inputs and weights in use may fill: with 0.95 of it, 2 x 1
    tiles are 1.2 times as fast as 4 x 1, with all of it 0.9 times as fast as 2 x 2."""
    l2_weights: float = 1 / 4
    """Part of the second-level cache for the weights that meet the inputs of a register tile, one
    after another. Inputs of 128 KB, read in place, took 0.75 of the time of all tiles for each
    block of outputs (256 outputs of 128 channels, k4 s4)."""


class Costs(NamedTuple):
    """The figures of one class of processors: those of a core, and those of each kernel."""

    adds: float = 2  # multiply-adds of a vector in a cycle
    loads: float = 2  # loads of a vector in a cycle
    latency: float = 4  # a register's multiply-add to its next
    step: float = 0.5  # an iteration of a tile's loop, beside its work
    unaligned: float = 2.0  # loads that one across two lines counts as
    line: float = 1.0  # parts of a line in a vector
    weights: float = 2.2  # a vector of weights from the second-level cache, each line once
    stream: float = 17  # bytes in a cycle of panels that are read one after another
    masked: float = 1  # how many times as long a multiply-add under a mask takes
    l3: int = 24 << 20  # bytes that stay in the third-level cache
    packing: Packing = Packing()
    positions: Positions = Positions()
    channels: Channels = Channels()
    planes: Planes = Planes()
    winograd: Winograd = Winograd()
    weight_grad: WeightGrad = WeightGrad()
    tiles: Tiles = Tiles()


_MESH = "AVX-512 beside a mesh of caches"
_TABLE: dict[int | str, Costs] = {
    64: Costs(),
    # A Xeon with AMX, whose third-level cache is large and far (27 November 2026). Packing takes
    # 1.3 to 1.5 cycles a number. `strided_line` and `few` choose direct sums for three layers that
    # take 0.42 to 0.68 of the time by them. `axes` and `axis` were fitted to strided input
    # gradients of images and volumes, of 700 that took 1.07 times as long as by the best choice on
    # one thread and 1.11 times on two. The third-level cache gives a core a line in 2.2 ns, whence
    # `stream`: pushes of four frames of HiFi-GAN take 0.87 (one thread) and 0.97 of the time.
    _MESH: Costs(
        packing=Packing(number=1.4, gathered=2.7),
        winograd=Winograd(strided_line=28, axes=12, few=16, axis=1.16, stream=6),
    ),
    # A Zen 4 held to AVX2 (22 November 2026). An unaligned load as 1.5 chooses tiles of one vector,
    # which take 1.4 times as long for fcn8s_final; weights at 1.1, half of a longer vector's, make
    # five layers of eight 2 to 6 % faster and two that stream many weights 4 to 17 % slower.
    32: Costs(masked=2),
}


def costs_of(vector_bytes: int, *, mesh: bool = False) -> Costs:
    """The figures of processors with vectors of so many bytes; `mesh`: those of a Xeon's caches."""
    if mesh:
        return _TABLE[_MESH]
    return _TABLE[max(32, vector_bytes)]  # nothing was fitted for SSE2 and NEON


def dots_of(name: str) -> float:
    """The worth of AVX512-BF16 on a processor, by LLVM's name for it.

    A Xeon with AMX (2026-11-21, 24 accumulators in registers, 512 bits): an instruction, of two
    products for each lane, every 2.0 cycles, where two of FMA are issued in every cycle. Zen 4
    issues as many of one as of the other: 1.3 to 2.0 times the speed of widened inputs on 20
    layers (2026-11-22, docs/jit.md). Unknown processors are taken for slow.
    """
    return 2.0 if name.startswith("znver") else 0.5
