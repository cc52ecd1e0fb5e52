"""Progress of a run: its log file, a progress bar or status lines on the terminal, and TensorBoard events."""

import sys
import time
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from tercet import runs

SECONDS_BETWEEN_LINES = 10.0


class RunProgress:
    """Writes the log file of a run, and nothing to the terminal."""

    def __init__(self) -> None:
        self._log_file: Path | None = None

    def begin(self, log_file: Path) -> None:
        """A run starts or resumes; later messages go to this file."""
        self._log_file = log_file

    def __enter__(self) -> "RunProgress":
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, trace: TracebackType | None) -> None:
        pass

    def log(self, text: str) -> None:
        """Append a line to the log file."""
        if self._log_file is not None:
            with self._log_file.open("a", encoding="utf-8") as stream:
                stream.write(f"{time.strftime('%Y-%m-%d %H:%M:%S')} {text}\n")

    def step(self, done: int, total: int, status: Mapping[str, str]) -> None:
        """Called after every step."""


class TerminalProgress(RunProgress):
    """Also prints to stderr: a progress bar on a terminal, a line every 10 seconds otherwise."""

    def __init__(self, title: str) -> None:
        super().__init__()
        console = Console(file=sys.stderr)
        self._progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeRemainingColumn(elapsed_when_finished=True),
            TextColumn("{task.fields[status]}"),
            console=console,
            disable=not console.is_terminal,
        )
        self._bar = self._progress.add_task(escape(title), total=None, status="")
        self._next_line = time.monotonic() + SECONDS_BETWEEN_LINES

    def __enter__(self) -> "TerminalProgress":
        self._progress.start()
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._progress.stop()

    def log(self, text: str) -> None:
        super().log(text)
        self._progress.console.print(escape(text), highlight=False, soft_wrap=True)

    def step(self, done: int, total: int, status: Mapping[str, str]) -> None:
        text = ", ".join(f"{name} {value}" for name, value in status.items())
        self._progress.update(self._bar, completed=done, total=total, status=text)
        if self._progress.disable and time.monotonic() >= self._next_line:
            self._next_line = time.monotonic() + SECONDS_BETWEEN_LINES
            self._progress.console.print(f"step {done} of {total}, {text}", highlight=False, soft_wrap=True)


class TensorBoardLog:
    """Writes the lines of metrics.jsonl as TensorBoard scalars."""

    def __init__(self, folder: Path) -> None:
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError as error:
            raise ValueError("--tensorboard needs its package: pip install tensorboard") from error
        self._writer: Any = SummaryWriter(str(folder / "tensorboard"))
        self._written = 0

    def write(self, folder: Path) -> None:
        """Write the lines that were appended since the last call."""
        lines = runs.read_lines(folder)
        for line in lines[self._written :]:
            for name, value in _flat(line).items():
                self._writer.add_scalar(name, value, line["step"])
        self._written = len(lines)
        self._writer.flush()


def _flat(line: dict[str, Any], prefix: str = "") -> dict[str, float]:
    scalars: dict[str, float] = {}
    for name, value in line.items():
        if isinstance(value, dict):
            scalars |= _flat(value, f"{prefix}{name}/")
        elif isinstance(value, (int, float)) and not isinstance(value, bool) and name not in ("step", "epoch"):
            scalars[f"{prefix}{name}"] = float(value)
    return scalars
