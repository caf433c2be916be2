"""Work that several threads begin at the same moment."""

from __future__ import annotations

import threading


def in_threads(count: int, work) -> list:
    """What each call returned or raised."""
    results, errors = [], []
    barrier = threading.Barrier(count)

    def go() -> None:
        barrier.wait()
        try:
            results.append(work())
        except Exception as error:
            errors.append(error)

    threads = [threading.Thread(target=go) for _ in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return results + errors
