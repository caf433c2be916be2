"""What the driver of the positions kernel is told: its argument block and its tables.

Lanes, windows and jobs are explained in docs/jit.md. Lanes that are no output (`yrows` < 0, or
beyond `limit`) are computed with the others and not stored.
"""

from __future__ import annotations

from .kernel_arguments import Slots

SLOTS = Slots((
    "x", "y", "w", "bias", "residual",  # operands
    "buffer",  # packed input: one per group when shared, else one per thread
    "fill", "finish",  # functions of rows.py
    "pack", "spans",  # of driver.py
    "xrows",  # rows: byte offset of an image's input row, < 0 where there is none
    "yrows",  # combos x rows: byte offset of an image's output row, < 0 where there is none
    "taps",  # byte offsets of outer taps from a tile's place in the buffer
    "combos",  # per combination of outer phases: number of its first tap, count of its taps
    "blocks",  # BLOCK numbers per block
    "places",  # combos x blocks: byte offset of a block's weights
), (
    "groups", "images", "channels",
    "in_rows", "in_width", "in_pitch",  # input rows, joined where no zeros are between them
    "rows", "pitch", "limit", "stride",
    "combo_count", "block_count", "lead",
    "x_image", "x_group", "x_channel", "x_bytes",
    "y_image", "y_group", "y_channel", "y_bytes",
    "bias_group", "w_group", "element",
    "buffer_part", "buffer_channel",
    "total",  # lanes that hold outputs
    "front", "back",  # lanes read before a window's first lane and after its last
    "shared", "pack_channels", "pack_lanes", "pack_jobs",
    "window", "windows",
    "span", "span_step",  # a window's runs of lanes that tiles fill, and lanes from one to the next
    "block_run", "block_runs", "jobs",
    "lanes", "vectors", "most_narrow",
    "direct",  # whether tiles may store what they compute as it is
), ("next_pack", "packed", "next_job", "next_thread"))  # fmt: skip
BLOCK = ("wide", "narrow", "channel", "live", "phase", "phases")
"""Numbers per block: two tiles' addresses, first channel, how many, first phase, how many."""
