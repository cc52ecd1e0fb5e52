"""What Tercet prints, and how long work shows its progress.

Names and texts of data never reach the terminal as control characters: a terminal obeys what it is sent, and an image
name or a caption could set the window's title, clear the screen or hide an error. Everything is printed by a
`terminal_console` or by `print_lines`.

`Progress` is the one interface that every long function takes; it shows nothing and is the default. `ConsoleProgress`
shows bars on a terminal or in a notebook, and a line now and then elsewhere. `RunProgress` is that of a training run:
it also writes the log file of the run folder.
"""

import html
import os
import sys
import time
import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

from rich.console import Console, ConsoleOptions, RenderableType
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, ProgressColumn, TaskID, TextColumn, TimeRemainingColumn
from rich.progress import Progress as RichProgress
from rich.segment import Segment

JOINERS = "\u200c\u200d"  # invisible, but part of Persian words and of emoji
FILE_WIDTH = 120  # columns where the output is no terminal
SECONDS_BETWEEN_LINES = 10.0
SECONDS_BETWEEN_FRAMES = 0.25


def printable(text: str) -> str:
    r"""The text on one line, with escapes in place of characters that a terminal would obey or not show.

    >>> printable("a\x1b[2Jb\nc")
    'a\\x1b[2Jb\\nc'
    """
    return text if text.isprintable() else "".join(map(_shown, text))


def _shown(character: str) -> str:
    if character.isprintable() or character in JOINERS or unicodedata.category(character) == "Zs":
        return character
    return character.encode("unicode_escape").decode()


def print_lines(*lines: str, to_stderr: bool = False) -> None:
    """Print each of these texts on one line."""
    print(*map(printable, lines), sep="\n", file=sys.stderr if to_stderr else sys.stdout)


def print_skipped(items: Sequence[str]) -> None:
    """List what `--skip-bad` skipped."""
    if items:
        print_lines(f"Skipped {len(items):,} invalid items:", *(f"  {item}" for item in items), to_stderr=True)


def terminal_console(**options: Any) -> Console:
    """rich's console, of which only rich itself sends control characters, and not the text that is shown."""
    console = _Console(**options)
    if not (console.is_terminal or console.is_jupyter or "width" in options or "COLUMNS" in os.environ):
        console.width = FILE_WIDTH
    return console


class _Console(Console):
    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        for segment in super().render(renderable, options):
            if segment.control or segment.text.isprintable():
                yield segment
            else:
                yield Segment("\n".join(map(printable, segment.text.split("\n"))), segment.style)


class Bar:
    """One stage of the work; this one shows nothing."""

    def advance(self, count: int = 1) -> None:
        """`count` more items are done."""

    def update(self, done: int, total: int | None = None, status: str = "") -> None:
        """`done` items are done; the total may be known only now."""


NO_BAR = Bar()


class Progress:
    """Shows nothing: for callers of the library."""

    def bar(self, title: str, total: int | None = None) -> Bar:
        return NO_BAR

    def log(self, text: str) -> None:
        """One line for the user."""

    def __enter__(self) -> "Progress":
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, trace: TracebackType | None) -> None:
        pass


SILENT = Progress()


def is_notebook() -> bool:
    return terminal_console().is_jupyter


def progress_console() -> Console:
    """Where progress is shown: stderr, or the output of the cell in a notebook."""
    if is_notebook():  # plain text: rich would make every line an HTML block, cut off at the width of a terminal
        return terminal_console(file=sys.stdout, force_jupyter=False, force_terminal=False, width=120)
    return terminal_console(file=sys.stderr)


def bar_columns(width: int | None = 40) -> tuple[ProgressColumn, ...]:
    """Title, bar, done of total, time, status: the same for every bar of Tercet."""
    return (
        TextColumn("{task.description}"),
        BarColumn(bar_width=width),
        MofNCompleteColumn(),
        TimeRemainingColumn(elapsed_when_finished=True),
        TextColumn("{task.fields[status]}"),
    )


class ConsoleProgress(Progress):
    """Bars on stderr if it is a terminal or a notebook; a line every 10 seconds otherwise."""

    def __init__(self, console: Console | None = None, *, transient: bool = True) -> None:
        """`transient`: remove the bars at the end."""
        self.console = console or progress_console()
        self.rich = RichProgress(
            *bar_columns(), console=self.console, transient=transient, disable=not self.console.is_terminal
        )

    def bar(self, title: str, total: int | None = None) -> Bar:
        return NotebookBar(title, total) if is_notebook() else _ConsoleBar(self, title, total)

    def log(self, text: str) -> None:
        self.console.print(escape(printable(text)), highlight=False, soft_wrap=True)

    def __enter__(self) -> "ConsoleProgress":
        self.rich.start()
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if not self.rich.disable:  # older versions of rich would print an empty line
            self.rich.stop()


class _ConsoleBar(Bar):
    def __init__(self, progress: ConsoleProgress, title: str, total: int | None) -> None:
        self._progress, self._title, self._done, self._total = progress, title, 0, total
        self._task: TaskID = progress.rich.add_task(escape(title), total=total, status="")
        self._next_line = time.monotonic() + SECONDS_BETWEEN_LINES

    def advance(self, count: int = 1) -> None:
        self.update(self._done + count)

    def update(self, done: int, total: int | None = None, status: str = "") -> None:
        self._done, self._total = done, self._total if total is None else total
        self._progress.rich.update(self._task, completed=done, total=self._total, status=status)
        if self._progress.rich.disable and time.monotonic() >= self._next_line:
            self._next_line = time.monotonic() + SECONDS_BETWEEN_LINES
            of_total = "" if self._total is None else f" of {self._total}"
            self._progress.log(f"{self._title}: {done}{of_total}" + (f", {status}" if status else ""))


class NotebookBar(Bar):
    """A bar below the cell of a notebook, updated in place; needs nothing but IPython."""

    def __init__(self, title: str, total: int | None = None) -> None:
        from IPython.display import display

        self._title, self._done, self._total, self._status = title, 0, total, ""
        self._started, self._next_frame = time.monotonic(), 0.0
        self._shown = display(self, display_id=True)

    def advance(self, count: int = 1) -> None:
        self.update(self._done + count)

    def update(self, done: int, total: int | None = None, status: str = "") -> None:
        self._done, self._total, self._status = done, self._total if total is None else total, status
        if time.monotonic() >= self._next_frame or done == self._total:
            self._next_frame = time.monotonic() + SECONDS_BETWEEN_FRAMES
            self._shown.update(self)

    def _repr_html_(self) -> str:
        value = "" if self._total is None else f' max="{max(1, self._total)}" value="{self._done}"'
        return f"<progress{value}></progress> {html.escape(printable(str(self)))}"

    def __repr__(self) -> str:
        count = f"{self._done}" if self._total is None else f"{self._done} of {self._total}"
        seconds = time.monotonic() - self._started
        return ", ".join(filter(None, [f"{self._title}: {count}", f"{seconds:.0f} s", self._status]))


class RunProgress(Progress):
    """Of a training run: messages go to the log file of its folder too, and one bar counts its steps."""

    def __init__(self, shown: Progress = SILENT) -> None:
        self._shown, self._bar = shown, NO_BAR
        self._log_file: Path | None = None

    def begin(self, log_file: Path) -> None:
        """A run starts or resumes; later messages go to this file."""
        self._log_file = log_file
        self._bar = self._shown.bar(log_file.parent.name)

    def log(self, text: str) -> None:
        if self._log_file is not None:
            with self._log_file.open("a", encoding="utf-8") as stream:
                stream.write(f"{time.strftime('%Y-%m-%d %H:%M:%S')} {printable(text)}\n")
        self._shown.log(text)

    def step(self, done: int, total: int, status: Mapping[str, str]) -> None:
        """Called after every step."""
        self._bar.update(done, total, ", ".join(f"{name} {value}" for name, value in status.items()))

    def __enter__(self) -> "RunProgress":
        self._shown.__enter__()
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._shown.__exit__(kind, error, trace)
