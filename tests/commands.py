"""The command line in this process: what a user would see, without starting an interpreter."""

import contextlib
import io
import os
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from tercet import plugins
from tercet.cli.main import main


class Done(NamedTuple):
    returncode: int
    stdout: str
    stderr: str


def tercet(*arguments, cwd=None, check=False) -> Done:
    """Run a command in a folder; with `check`, it must succeed. It sees no file that an earlier command trusted or
    imported, as a new process.
    """
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err), inside(cwd), nothing_trusted():
        try:
            main([*map(str, arguments)])
            code = 0
        except SystemExit as stop:
            code = stop.code or 0
    assert isinstance(code, int), code
    assert not (check and code), err.getvalue()
    return Done(code, out.getvalue(), err.getvalue())


@contextlib.contextmanager
def inside(folder: Path | None) -> Iterator[None]:
    before = os.getcwd()
    os.chdir(folder or before)
    try:
        yield
    finally:
        os.chdir(before)


@contextlib.contextmanager
def nothing_trusted() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(plugins, "_TRUSTED", set())
        patched.setattr(plugins, "_MODULES", {})
        yield
