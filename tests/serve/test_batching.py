"""Queued queries are processed in one batch, a bad query fails alone, and queues are bounded."""

import asyncio
import threading

import pytest
from fastapi import HTTPException

from tercet.serve import batching
from tercet.serve.batching import MicroBatcher, WorkerPool


def test_queued_queries_are_processed_in_one_call():
    calls, started, release = [], threading.Event(), threading.Event()

    def process(queries):
        calls.append(list(queries))
        started.set()
        assert release.wait(10)
        if 13 in queries:
            raise ValueError("unlucky")
        return [10 * query for query in queries]

    async def main():
        batcher = MicroBatcher(process, "test")
        first = asyncio.create_task(batcher.submit(1))
        await asyncio.to_thread(started.wait, 10)
        rest = [asyncio.create_task(batcher.submit(number)) for number in range(2, 7)]
        gone = asyncio.create_task(batcher.submit(99))
        await asyncio.sleep(0)
        gone.cancel()  # this client disconnected
        release.set()
        assert await first == 10
        assert await asyncio.gather(*rest) == [20, 30, 40, 50, 60]
        assert calls[:2] == [[1], [2, 3, 4, 5, 6, 99]]
        results = await asyncio.gather(batcher.submit(7), batcher.submit(13), batcher.submit(8), return_exceptions=True)
        assert (results[0], str(results[1]), results[2]) == (70, "unlucky", 80)
        batcher.close()

    asyncio.run(main())


def test_a_full_queue_rejects_queries(monkeypatch):
    monkeypatch.setattr(batching, "MAX_QUEUED_QUERIES", 2)
    release = threading.Event()

    async def main():
        batcher = MicroBatcher(lambda queries: [release.wait(10) for _ in queries], "test")
        tasks = [asyncio.create_task(batcher.submit(n)) for n in range(6)]
        await asyncio.sleep(0.2)
        release.set()
        results = await asyncio.gather(*tasks, return_exceptions=True)
        rejected = [result for result in results if isinstance(result, HTTPException)]
        assert rejected
        assert all(error.status_code == 503 for error in rejected)
        assert any(result is True for result in results)
        batcher.close()

    asyncio.run(main())


def test_jobs_are_bounded():
    release = threading.Event()

    async def main():
        jobs = WorkerPool(1, 1)
        tasks = [asyncio.create_task(jobs.run(release.wait, 10)) for _ in range(2)]
        await asyncio.sleep(0.05)
        with pytest.raises(HTTPException, match="too many requests"):
            await jobs.run(int)
        release.set()
        assert await asyncio.gather(*tasks) == [True, True]
        assert await jobs.run(int, "3") == 3

    asyncio.run(main())
