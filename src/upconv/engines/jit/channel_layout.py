"""What the channels kernel's driver is told: its argument block, its tables' records, its scratch.

The algebra. A *grid* is the set of all output points that one list of taps makes: one combination
of phases of all axes, or of the outer axes with a bundle of phases of the last. Its points are
numbered through its *dims*, innermost first: a count, steps in x and y, and for a dim that is an
axis how far one step moves along the inputs. A *block* is some lanes of a grid's points. A job is
a run of points of a run of blocks of one group.
"""

from __future__ import annotations

from .kernel_arguments import Slots

SLOTS = Slots((
    "y", "w", "bias", "residual",  # operands, channels last
    "buffer",  # `part` bytes for each thread
    "finish",  # of rows.py: from the stage
    "finish_turned",  # of rows.py: what is turned back
    "turn_in", "turn_out",  # of turn.py
    "points", "block",  # of channel_points.py and channel_driver.py
    "first_x", "first_y",  # channels first: the operands as they are given
    "last_x",  # and the turned input, where `x` is too
    "grids", "dims", "blocks", "taps", "sizes", "tiles",
), (
    "x", "x_group", "x_image", "y_group", "y_image", "w_group", "bias_group",
    "channels", "zeros", "axes", "element", "direct",
    "w_bytes", "w_channels", "w_line",  # of a packed weight; of a tap; asked for per input channel
    "part", "pitch",  # bytes from one array of points to the next
    "stage",  # where the stage lies in a thread's part
    "step", "runs", "block_count", "block_run", "block_runs", "jobs",
    "x_bytes", "y_bytes", "turns", "images", "in_channels", "out_channels", "inputs", "outputs",
    "in_part", "in_span", "in_spans", "in_jobs", "out_part", "out_span", "out_spans", "out_jobs",
    "in_image", "in_channel", "out_image", "out_channel", "plain",
), ("next_in", "turned", "next_job", "done", "next_out", "next_thread"))  # fmt: skip
GRID = ("total", "dims", "last", "limit")
"""Points; first number in `dims`; inputs before the last point of a row, and lanes that it has."""
DIM = ("count", "x_step", "y_step", "axis", "inputs", "lead", "low", "high")
"""Points along it; bytes from one to the next; its axis, or -1 for images, and inputs from one
point to the next; the input of the first; no tap reads outside where low <= input < high."""
BLOCK = (
    "grid", "lane", "live", "width", "y_lane", "x_lane", "tiles", "most", "taps", "ntaps",
    "record", "w", "chunk_taps", "chunk_channels", "bias", "clip",
)  # fmt: skip
"""A grid's lanes [lane, lane + live), padded to width; byte offsets of its place in y (and in x,
where channels have weights of their own); first number in `tiles`, and points of the largest tile;
place of its taps, how many, bytes of each; place of its weights; taps and input channels of a pass;
place of its bias; lanes that exist where a row of the output ends."""
ARRAYS = ("x", "y", "lanes", "edges")  # of points, before the coordinates
LANES = 8  # points that are written at once
PAD = 16  # points repeated after the last: the most a tile has
CHUNK = 256  # positions of a row that are turned back at once where there is an epilogue
