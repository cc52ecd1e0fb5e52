"""Run requests in worker threads, with bounded queues: single jobs, and a micro-batcher for text queries."""

import asyncio
import queue
import threading
from collections.abc import Callable, Sequence
from functools import partial
from typing import Generic, NamedTuple, ParamSpec, TypeVar

import anyio
from anyio import to_thread

from tercet.serve.limits import MAX_QUERIES_PER_BATCH, MAX_QUEUED_QUERIES
from tercet.serve.params import unavailable

P = ParamSpec("P")
T = TypeVar("T")
Query = TypeVar("Query")
Result = TypeVar("Result")


class WorkerPool:
    """Runs jobs in threads, at most `threads` at a time; 503 while `queued` further ones wait."""

    def __init__(self, threads: int, queued: int) -> None:
        self._limiter, self._queued = anyio.CapacityLimiter(threads), queued

    async def run(self, job: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        if self._limiter.statistics().tasks_waiting >= self._queued:
            raise unavailable("too many requests")
        # Abandoned only when the server stops: a job that hangs must not keep it from stopping.
        return await to_thread.run_sync(partial(job, *args, **kwargs), limiter=self._limiter, abandon_on_cancel=True)


class _Pending(NamedTuple):
    query: object
    result: "asyncio.Future[object]"
    loop: asyncio.AbstractEventLoop


class MicroBatcher(Generic[Query, Result]):
    """One thread that processes all queued queries, up to MAX_QUERIES_PER_BATCH, in one call."""

    def __init__(self, process: Callable[[Sequence[Query]], Sequence[Result]], name: str) -> None:
        self._process = process
        self._queue: queue.Queue[_Pending | None] = queue.Queue(MAX_QUEUED_QUERIES)
        self._thread = threading.Thread(target=self._work, name=name, daemon=True)
        self._thread.start()

    async def submit(self, query: Query) -> Result:
        loop = asyncio.get_running_loop()
        result: asyncio.Future[Result] = loop.create_future()
        try:
            self._queue.put_nowait(_Pending(query, result, loop))  # type: ignore[arg-type]
        except queue.Full as error:
            raise unavailable("too many requests") from error
        return await result

    def close(self) -> None:
        """Process what is queued, then stop."""
        self._queue.put(None)
        self._thread.join(timeout=10)

    def _work(self) -> None:
        while (first := self._queue.get()) is not None:
            batch, closing = [first], False
            while len(batch) < MAX_QUERIES_PER_BATCH and not closing:
                try:
                    pending = self._queue.get_nowait()
                except queue.Empty:
                    break
                if pending is None:
                    closing = True
                else:
                    batch.append(pending)
            self._process_batch(batch)
            if closing:
                return

    def _process_batch(self, batch: Sequence[_Pending]) -> None:
        try:
            results: Sequence[object] = self._process([pending.query for pending in batch])  # type: ignore[misc]
        except Exception as error:
            if len(batch) > 1:  # retry one by one: a bad query must not fail the others
                for pending in batch:
                    self._process_batch([pending])
            else:
                _resolve(batch[0], None, error)
            return
        for pending, result in zip(batch, results, strict=True):
            _resolve(pending, result, None)


def _resolve(pending: _Pending, result: object, error: Exception | None) -> None:
    def resolve() -> None:
        if pending.result.done():  # the client has gone
            return
        if error is None:
            pending.result.set_result(result)
        else:
            pending.result.set_exception(error)

    pending.loop.call_soon_threadsafe(resolve)
