"""What Tercet prints. Names and texts of data never reach the terminal as control characters.

A terminal obeys what it is sent: an image name or a caption could set the window's title, clear the screen or hide an
error. Everything is printed by a `terminal_console` or by `print_lines`.
"""

import sys
import unicodedata
from collections.abc import Iterable
from typing import Any

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment

JOINERS = "\u200c\u200d"  # invisible, but part of Persian words and of emoji


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


def terminal_console(**options: Any) -> Console:
    """rich's console, of which only rich itself sends control characters, and not the text that is shown."""
    return _Console(**options)


class _Console(Console):
    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        for segment in super().render(renderable, options):
            if segment.control or segment.text.isprintable():
                yield segment
            else:
                yield Segment("\n".join(map(printable, segment.text.split("\n"))), segment.style)
