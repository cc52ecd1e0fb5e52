"""What a person sees of a run: a bar in a terminal, a line now and then elsewhere, and always the log."""

import sys
import time
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

SECONDS_BETWEEN_LINES = 10.0


class Report:
    """Writes the log of a run, and is silent otherwise."""

    def __init__(self) -> None:
        self._log: Path | None = None

    def begin(self, log: Path) -> None:
        """A run begins, or goes on, with this log."""
        self._log = log

    def __enter__(self) -> "Report":
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, trace: TracebackType | None) -> None:
        pass

    def say(self, text: str) -> None:
        """Something worth a line."""
        if self._log is not None:
            with self._log.open("a", encoding="utf-8") as stream:
                stream.write(f"{time.strftime('%Y-%m-%d %H:%M:%S')} {text}\n")

    def step(self, done: int, total: int, news: Mapping[str, str]) -> None:
        """After every step."""


class TerminalReport(Report):
    """Speaks on stderr too."""

    def __init__(self, title: str) -> None:
        super().__init__()
        console = Console(file=sys.stderr)
        self._progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeRemainingColumn(elapsed_when_finished=True),
            TextColumn("{task.fields[news]}"),
            console=console,
            disable=not console.is_terminal,
        )
        self._bar = self._progress.add_task(escape(title), total=None, news="")
        self._next_line = time.monotonic() + SECONDS_BETWEEN_LINES

    def __enter__(self) -> "TerminalReport":
        self._progress.start()
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._progress.stop()

    def say(self, text: str) -> None:
        super().say(text)
        self._progress.console.print(escape(text), highlight=False, soft_wrap=True)

    def step(self, done: int, total: int, news: Mapping[str, str]) -> None:
        text = ", ".join(f"{name} {value}" for name, value in news.items())
        self._progress.update(self._bar, completed=done, total=total, news=text)
        if self._progress.disable and time.monotonic() >= self._next_line:
            self._next_line = time.monotonic() + SECONDS_BETWEEN_LINES
            self._progress.console.print(f"step {done} of {total}, {text}", highlight=False, soft_wrap=True)
