"""Work done ahead of the one who waits for it, in order, by a few threads."""

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

Given = TypeVar("Given")
Made = TypeVar("Made")


def ahead(make: Callable[[Given], Made], items: Iterable[Given], workers: int) -> Iterator[Made]:
    """`map(make, items)`. Threads suffice: reading rows and decoding pictures both let go of the interpreter."""
    pool = ThreadPoolExecutor(workers, thread_name_prefix="ahead")
    waiting: deque[Future[Made]] = deque()
    try:
        for item in items:
            waiting.append(pool.submit(make, item))
            if len(waiting) > 2 * workers:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()
    finally:  # also when the reader has had enough
        pool.shutdown(wait=True, cancel_futures=True)
