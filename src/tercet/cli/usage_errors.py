"""The command-line parser's errors as one line, like all others: what, what was given, what is allowed."""

import re
from collections.abc import Iterable

from tercet.names import suggest

NUMBERS = {"int() with base 10": "a whole number", "float": "a number"}


def one_line(boxed: str, flags: Iterable[str]) -> str:
    """What tyro prints in a box of lines; `flags` are those of the command.

    >>> one_line("Value error\\n ---\\n  Error parsing --epochs: could not convert string to float: 'x'\\n ---", ())
    "--epochs: expected a number, got 'x'"
    """
    lines = [line.strip("│╭╮╰╯").rstrip() for line in boxed.splitlines()[1:]]
    lines = ["" if not line.strip(" ─-") else line for line in lines]
    parts = [part for part in "\n".join(lines).split("\n\n") if part.strip()]
    sections = [" ".join(part.split()) for part in parts]
    text = sections[0] if sections else " ".join(boxed.split())
    if text.startswith("Unrecognized options: "):
        return _unrecognized(text.partition(": ")[2], list(flags))
    if text.startswith("Missing from "):
        entries = [line for line in parts[0].strip("\n").splitlines()[1:] if line.strip()]
        indent = min((len(line) - len(line.lstrip()) for line in entries), default=0)
        missing = ", ".join(line.split()[0] for line in entries if len(line) - len(line.lstrip()) == indent)
        return f"missing: {missing}"
    text = re.sub(r"^Error parsing \w+: (?=--)", "", text).removeprefix("Error parsing ")
    number = re.fullmatch(r"(\S+): (?:invalid literal for|could not convert string to) (.+?): (.+)", text)
    if number is not None:
        return f"{number[1]}: expected {NUMBERS.get(number[2], 'a value of another kind')}, got {number[3]}"
    return text


def _unrecognized(given: str, flags: list[str]) -> str:
    words = given.split(", ")
    flag = next((word for word in words if word.startswith("-")), None)
    if flag is None:
        return f"too many arguments: {' '.join(words)}"
    near = suggest(flag.partition("=")[0], flags)
    return f"no setting {flag}{near or '; all are listed by --help'}"
