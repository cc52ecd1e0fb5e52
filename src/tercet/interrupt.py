"""Signals that ask a process to stop: Ctrl-C, SIGTERM (SLURM, Kubernetes, `kill`) and SIGHUP (a closed terminal).

Long work runs under `Interrupt`: it finishes its step, saves, and raises `Stopped`. Elsewhere a command stops where it
is (`stop_on_signals`): files are written atomically, so that there is nothing to save.
"""

import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType, TracebackType
from typing import Any

SIGNALS = tuple(getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name))
SECONDS_BETWEEN_SIGNALS = 1.0
"""Launchers such as torchrun pass on a signal that the whole process group has got: so soon it is the same request."""

Handler = Callable[[int, FrameType | None], None]


class Stopped(KeyboardInterrupt):
    """A signal stopped the work; what it had finished is saved."""

    def __init__(self, number: int) -> None:
        super().__init__(f"stopped by {signal.Signals(number).name}; finished work is kept, run it again to resume")
        self.number = number


class Interrupt:
    """Turns signals into the flag `requested`, so that the current step is finished; a later second one stops at once.

    A handler that the caller has set for SIGTERM or SIGHUP stays, and so does ignoring them (nohup).
    """

    def __init__(self) -> None:
        self.requested = False
        self.number: int | None = None
        self._time = 0.0
        self._previous_handlers: dict[int, Any] = {}

    def stop(self) -> None:
        """Raise `Stopped`. Call it when everything is saved."""
        raise Stopped(signal.SIGTERM if self.number is None else self.number)

    def __enter__(self) -> "Interrupt":
        self._previous_handlers = _set_handlers(self._request, SIGNALS)
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, trace: TracebackType | None) -> None:
        _restore_handlers(self._previous_handlers)

    def _request(self, number: int, frame: FrameType | None) -> None:
        now = time.monotonic()
        if self.requested and now - self._time >= SECONDS_BETWEEN_SIGNALS:
            raise Stopped(number)
        if not self.requested:
            self.requested, self.number, self._time = True, number, now


@contextmanager
def stop_on_signals() -> Iterator[None]:
    """SIGTERM and SIGHUP raise `Stopped`, as Ctrl-C raises KeyboardInterrupt."""
    previous = _set_handlers(_stop, SIGNALS[1:])
    try:
        yield
    finally:
        _restore_handlers(previous)


def exit_code(error: KeyboardInterrupt) -> int:
    """The exit code of a process that a signal stopped: 130 for Ctrl-C, 143 for SIGTERM."""
    return 128 + (error.number if isinstance(error, Stopped) else signal.SIGINT)


def _stop(number: int, frame: FrameType | None) -> None:
    raise Stopped(number)


def _set_handlers(handler: Handler, numbers: tuple[int, ...]) -> dict[int, Any]:
    """Set the handler of these signals and return the previous ones. Only the main thread may do this."""
    if threading.current_thread() is not threading.main_thread():
        return {}
    taken = [number for number in numbers if number == signal.SIGINT or _is_free(signal.getsignal(number))]
    return {number: signal.signal(number, handler) for number in taken}


def _is_free(handler: Any) -> bool:
    return handler in (signal.SIG_DFL, _stop) or isinstance(getattr(handler, "__self__", None), Interrupt)


def _restore_handlers(previous: dict[int, Any]) -> None:
    for number, handler in previous.items():
        # None: set by code other than Python's, which cannot be set again.
        signal.signal(number, signal.SIG_DFL if handler is None else handler)
