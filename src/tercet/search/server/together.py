"""Questions that arrive while others are being answered wait, and are then answered together."""

import asyncio
import queue
import threading
from collections.abc import Callable, Sequence
from typing import Generic, NamedTuple, TypeVar

from tercet.search.server.refused import busy

AT_ONCE = 32  # questions answered together
WAITING = 256  # questions that may wait; more are refused

Question = TypeVar("Question")
Answer = TypeVar("Answer")


class _Waiting(NamedTuple):
    question: object
    answer: "asyncio.Future[object]"
    loop: asyncio.AbstractEventLoop


class Together(Generic[Question, Answer]):
    """One thread that takes all that waits, up to AT_ONCE, and answers it in one call."""

    def __init__(self, answer: Callable[[Sequence[Question]], Sequence[Answer]], name: str) -> None:
        self._answer = answer
        self._waiting: queue.Queue[_Waiting | None] = queue.Queue(WAITING)
        self._thread = threading.Thread(target=self._work, name=name, daemon=True)
        self._thread.start()

    async def ask(self, question: Question) -> Answer:
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[Answer] = loop.create_future()
        try:
            self._waiting.put_nowait(_Waiting(question, answer, loop))  # type: ignore[arg-type]
        except queue.Full as error:
            raise busy() from error
        return await answer

    def close(self) -> None:
        """What waits is still answered."""
        self._waiting.put(None)
        self._thread.join(timeout=10)

    def _work(self) -> None:
        while (first := self._waiting.get()) is not None:
            asked, last = [first], False
            while len(asked) < AT_ONCE and not last:
                try:
                    more = self._waiting.get_nowait()
                except queue.Empty:
                    break
                if more is None:
                    last = True
                else:
                    asked.append(more)
            self._answer_all(asked)
            if last:
                return

    def _answer_all(self, asked: Sequence[_Waiting]) -> None:
        try:
            answers: Sequence[object] = self._answer([each.question for each in asked])  # type: ignore[misc]
        except Exception as error:
            if len(asked) > 1:  # one bad question must not spoil the others' answers
                for each in asked:
                    self._answer_all([each])
            else:
                _tell(asked[0], None, error)
            return
        for each, answer in zip(asked, answers, strict=True):
            _tell(each, answer, None)


def _tell(waiting: _Waiting, answer: object, error: Exception | None) -> None:
    def tell() -> None:
        if waiting.answer.done():  # whoever asked has gone
            return
        if error is None:
            waiting.answer.set_result(answer)
        else:
            waiting.answer.set_exception(error)

    waiting.loop.call_soon_threadsafe(tell)
