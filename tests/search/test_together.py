"""Questions are answered together, and one bad question spoils nobody else's answer."""

import asyncio
import threading

import pytest

from tercet.search.server import together
from tercet.search.server.jobs import Jobs
from tercet.search.server.refused import Refused
from tercet.search.server.together import Together


def test_what_waits_is_answered_in_one_call():
    calls, begun, go_on = [], threading.Event(), threading.Event()

    def answer(questions):
        calls.append(list(questions))
        begun.set()
        assert go_on.wait(10)
        if 13 in questions:
            raise ValueError("unlucky")
        return [10 * question for question in questions]

    async def main():
        asked = Together(answer, "test")
        first = asyncio.create_task(asked.ask(1))
        await asyncio.to_thread(begun.wait, 10)
        rest = [asyncio.create_task(asked.ask(number)) for number in range(2, 7)]
        gone = asyncio.create_task(asked.ask(99))
        await asyncio.sleep(0)
        gone.cancel()  # whoever asked has left
        go_on.set()
        assert await first == 10
        assert await asyncio.gather(*rest) == [20, 30, 40, 50, 60]
        assert calls[:2] == [[1], [2, 3, 4, 5, 6, 99]]
        found = await asyncio.gather(asked.ask(7), asked.ask(13), asked.ask(8), return_exceptions=True)
        assert (found[0], str(found[1]), found[2]) == (70, "unlucky", 80)
        asked.close()

    asyncio.run(main())


def test_too_many_are_refused(monkeypatch):
    monkeypatch.setattr(together, "WAITING", 2)
    go_on = threading.Event()

    async def main():
        asked = Together(lambda questions: [go_on.wait(10) for _ in questions], "test")
        tasks = [asyncio.create_task(asked.ask(n)) for n in range(6)]
        await asyncio.sleep(0.2)
        go_on.set()
        found = await asyncio.gather(*tasks, return_exceptions=True)
        refused = [each for each in found if isinstance(each, Refused)]
        assert refused
        assert all(each.status == 503 for each in refused)
        assert any(each is True for each in found)
        asked.close()

    asyncio.run(main())


def test_jobs_are_bounded():
    go_on = threading.Event()

    async def main():
        jobs = Jobs(1, 1, "test")
        tasks = [asyncio.create_task(jobs.run(go_on.wait, 10)) for _ in range(2)]
        await asyncio.sleep(0.05)
        with pytest.raises(Refused, match="too many questions"):
            await jobs.run(int)
        go_on.set()
        assert await asyncio.gather(*tasks) == [True, True]
        assert await jobs.run(int, "3") == 3
        jobs.close()

    asyncio.run(main())
