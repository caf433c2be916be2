"""Work that several threads start at the same moment."""

import threading
from concurrent.futures import ThreadPoolExecutor


def in_threads(count: int, work) -> list:
    """Return what each call returned or raised."""
    barrier = threading.Barrier(count)

    def go(_: int) -> object:
        barrier.wait()
        try:
            return work()
        except Exception as error:
            return error

    with ThreadPoolExecutor(count) as pool:
        return list(pool.map(go, range(count)))
