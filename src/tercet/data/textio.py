"""Reading text and JSON files (UTF-8, optional byte order mark, Unix or Windows line ends) and reporting bad input."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

BYTE_ORDER_MARK = b"\xef\xbb\xbf"
MAX_CAPTION_LENGTH = 100_000
"""Characters. A compressed file of a few kilobytes may hold captions of gigabytes."""


class ErrorPolicy:
    """What readers do about an invalid item: raise, or skip it and record a message. Nothing is dropped silently."""

    def __init__(self, *, skip: bool = False) -> None:
        self.skip = skip
        self.messages: list[str] = []

    def report(self, location: str, message: str) -> None:
        """Raise `ValueError`, or record the message if bad items are skipped; the caller then skips the item."""
        if not self.skip:
            raise ValueError(f"{location}: {message}")
        self.messages.append(f"{location}: {message}")


def numbered_lines(file: Path, errors: ErrorPolicy) -> Iterator[tuple[int, str | None]]:
    """Yield the 1-based number and the text of every line; None for a skipped line that is not UTF-8.

    Only a newline ends a line: captions may contain the other characters at which `str.splitlines` splits.
    """
    with file.open("rb") as stream:
        for number, line in enumerate(stream, start=1):
            if number == 1:
                line = line.removeprefix(BYTE_ORDER_MARK)
            try:
                yield number, line.rstrip(b"\r\n").decode("utf-8")
            except UnicodeDecodeError as error:
                byte = line[error.start]
                where = f"{file}, line {number}"
                reason = f"not UTF-8 (byte 0x{byte:02x} at column {error.start + 1}): save the file as UTF-8"
                errors.report(where, reason)
                yield number, None


def read_json(file: Path) -> Any:
    """The content of a JSON file. Errors name the line."""
    try:
        return json.loads(file.read_bytes().removeprefix(BYTE_ORDER_MARK).decode("utf-8"))
    except UnicodeDecodeError as error:
        line = error.object.count(b"\n", 0, error.start) + 1
        raise ValueError(f"{file}, line {line}: not UTF-8 (byte 0x{error.object[error.start]:02x})") from error
    except json.JSONDecodeError as error:
        raise ValueError(f"{file}, line {error.lineno}: invalid JSON: {error.msg}") from error
    except ValueError as error:  # an integer with more digits than Python parses
        raise ValueError(f"{file}: invalid JSON: {error}") from error
    except RecursionError as error:
        raise ValueError(f"{file}: invalid JSON: nested too deeply") from error


def caption_error(text: object, noun: str = "caption") -> str | None:
    """Why this is not a valid caption, query or passage, or None if it is."""
    if not isinstance(text, str):
        return f"expected a {noun} string, got {type(text).__name__}"
    if len(text) > MAX_CAPTION_LENGTH:
        return f"{noun} of {len(text):,} characters: at most {MAX_CAPTION_LENGTH:,} are read"
    if not text.strip():
        return f"empty {noun}"
    if any("\ud800" <= character <= "\udfff" for character in text):
        return f"lone surrogate in the {noun}: it cannot be encoded as UTF-8"
    return None
