"""Ctrl-C between two steps of any work: the one under way is finished and kept, a second Ctrl-C stops at once."""

import signal
import threading
from types import FrameType, TracebackType
from typing import Any


class Interrupt:
    def __init__(self) -> None:
        self.asked = False
        self._before: Any = None

    def __enter__(self) -> "Interrupt":
        if threading.current_thread() is threading.main_thread():
            self._before = signal.signal(signal.SIGINT, self._ask)
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self._before is not None:
            signal.signal(signal.SIGINT, self._before)

    def _ask(self, number: int, frame: FrameType | None) -> None:
        if self.asked:
            raise KeyboardInterrupt
        self.asked = True
