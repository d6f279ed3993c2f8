"""The same work in many threads at once."""

import threading
from concurrent.futures import ThreadPoolExecutor


def in_threads(work, count: int = 8) -> None:
    """work(0) ... work(count - 1), each in a thread of its own, begun together; raises what one of them raised."""
    together = threading.Barrier(count)

    def begin(number):
        together.wait()
        work(number)

    with ThreadPoolExecutor(count) as pool:
        list(pool.map(begin, range(count)))
