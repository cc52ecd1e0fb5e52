"""Folders that appear whole or not at all."""

import fcntl
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

LOCK = ".lock"


@contextmanager
def whole_or_nothing(target: Path) -> Iterator[Path]:
    """A folder to write into, which takes the target's place in the end. What a kill left behind goes first."""
    if target.exists():
        raise ValueError(f"{target} is there already; nothing is overwritten")
    unfinished = target.with_name(f".{target.name}.unfinished")
    unfinished.mkdir(parents=True, exist_ok=True)
    with alone(unfinished):
        for left in unfinished.iterdir():
            if left.name != LOCK:
                shutil.rmtree(left) if left.is_dir() else left.unlink()
        try:
            yield unfinished
            (unfinished / LOCK).unlink()
            unfinished.rename(target)
        except BaseException:
            shutil.rmtree(unfinished, ignore_errors=True)
            raise


@contextmanager
def alone(folder: Path, waits: Callable[[], None] | None = None) -> Iterator[None]:
    """Two processes that fill the same files would undo each other's work.

    The second is refused; or, given `waits`, it says so by calling that, and waits.
    """
    with (folder / LOCK).open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            if waits is None:
                raise ValueError(f"another process is writing to {folder}") from error
            waits()
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield
