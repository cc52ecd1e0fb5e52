"""Text files as people have them: UTF-8, with or without a byte order mark, Unix or Windows line ends."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tercet.data.faults import Faults

BYTE_ORDER_MARK = b"\xef\xbb\xbf"


def numbered_lines(file: Path, faults: Faults) -> Iterator[tuple[int, str | None]]:
    """1-based number and text of every line; None for one that is not UTF-8 and is to be skipped.

    Only a newline ends a line: captions may hold any of the other signs that Python would split at.
    """
    with file.open("rb") as stream:
        for number, line in enumerate(stream, start=1):
            if number == 1:
                line = line.removeprefix(BYTE_ORDER_MARK)
            try:
                yield number, line.rstrip(b"\r\n").decode("utf-8")
            except UnicodeDecodeError as error:
                byte = line[error.start]
                faults.found(f"{file}, line {number}", f"not UTF-8 (byte 0x{byte:02x} at column {error.start + 1})")
                yield number, None


def read_json(file: Path) -> Any:
    """The content of a JSON file; a fault in it is told with its line."""
    try:
        return json.loads(file.read_bytes().removeprefix(BYTE_ORDER_MARK).decode("utf-8"))
    except UnicodeDecodeError as error:
        line = error.object.count(b"\n", 0, error.start) + 1
        raise ValueError(f"{file}, line {line}: not UTF-8 (byte 0x{error.object[error.start]:02x})") from error
    except json.JSONDecodeError as error:
        raise ValueError(f"{file}, line {error.lineno}: not JSON: {error.msg}") from error
    except ValueError as error:  # a number of thousands of digits
        raise ValueError(f"{file}: not JSON that can be read: {error}") from error
    except RecursionError as error:
        raise ValueError(f"{file}: not JSON that can be read: nested too deeply") from error


def no_caption(text: object) -> str | None:
    """Why this cannot be a caption, or None where it can."""
    if not isinstance(text, str):
        return f"a caption must be text, got {type(text).__name__}"
    if not text.strip():
        return "empty caption"
    if any("\ud800" <= sign <= "\udfff" for sign in text):
        return "half of a sign (a lone surrogate), which cannot be written as UTF-8"
    return None
