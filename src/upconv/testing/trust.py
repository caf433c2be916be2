"""Detection of results that cannot reveal an error, such as zeros."""

from __future__ import annotations

import numpy as np

from ..arrays import Array

_SAMPLE = 4096
_MAX_ALIKE = 0.75


def mistrusted(result: Array) -> bool:
    """Return whether more than 3/4 of a result's elements are equal, which may hide faults.

    A faulty engine may produce correct zeros. A run over random layers should count such results,
    and fail if there are many. For large results, up to 4,096 evenly spread elements are checked.
    A result without elements is mistrusted.

    >>> mistrusted(np.zeros(9)), mistrusted(np.arange(9.0)), mistrusted(np.zeros(0))
    (True, False, True)
    """
    if not result.size:
        return True
    sample = result.reshape(-1)[:: -(-result.size // _SAMPLE)].astype(np.float64)
    _, counts = np.unique(sample, return_counts=True)
    return len(sample) > 1 and bool(counts.max() > _MAX_ALIKE * len(sample))
