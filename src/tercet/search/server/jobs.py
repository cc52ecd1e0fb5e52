"""Work that takes a moment, in a few threads, and not more of it waiting than is sensible."""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import ParamSpec, TypeVar

from tercet.search.server.refused import busy

P = ParamSpec("P")
T = TypeVar("T")


class Jobs:
    def __init__(self, threads: int, waiting: int, name: str) -> None:
        self._threads = ThreadPoolExecutor(threads, thread_name_prefix=name)
        self._most, self._under_way = threads + waiting, 0

    async def run(self, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        if self._under_way >= self._most:
            raise busy()
        self._under_way += 1
        try:
            return await asyncio.wrap_future(self._threads.submit(work, *args, **kwargs))
        finally:
            self._under_way -= 1

    def close(self) -> None:
        self._threads.shutdown(wait=True, cancel_futures=True)
