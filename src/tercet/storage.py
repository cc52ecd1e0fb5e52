"""Atomic files and folders, locks and checksums. A final name never holds incomplete content."""

import errno
import hashlib
import json
import os
import shutil
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

FORMAT_VERSION = 1
"""Of run folders, saved models, checkpoints, indexes, features and mined tables."""
LOCK = ".lock"


@contextmanager
def atomic_path(file: Path) -> Iterator[Path]:
    """Yield a temporary path in the same folder; it is synced and renamed at the end, and removed on failure."""
    temporary = file.with_name(f".{file.name}.{os.getpid()}.tmp")
    try:
        yield temporary
        sync_file(temporary)
        os.replace(temporary, file)
    except OSError as error:
        temporary.unlink(missing_ok=True)
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise ValueError(
                f"{file}: the disk is full. Earlier files are intact: free space and run the command again to resume"
            ) from error
        raise
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    _sync_folder(file.parent)


def atomic_write(file: Path, data: bytes) -> None:
    with atomic_path(file) as temporary:
        temporary.write_bytes(data)


def write_json(file: Path, content: Any) -> None:
    atomic_write(file, (json.dumps(content, indent=2, sort_keys=True) + "\n").encode())


@contextmanager
def atomic_directory(target: Path) -> Iterator[Path]:
    """Yield a folder that is renamed to the target at the end. Leftovers of an interrupted call are removed first."""
    if target.exists():
        raise ValueError(f"{target} already exists; nothing is overwritten")
    unfinished = target.with_name(f".{target.name}.unfinished")
    unfinished.mkdir(parents=True, exist_ok=True)
    with exclusive_lock(unfinished):
        for leftover in unfinished.iterdir():
            if leftover.name != LOCK:
                shutil.rmtree(leftover) if leftover.is_dir() else leftover.unlink()
        try:
            yield unfinished
            (unfinished / LOCK).unlink(missing_ok=True)
            unfinished.rename(target)
        except BaseException:
            shutil.rmtree(unfinished, ignore_errors=True)
            raise


@contextmanager
def resumable_directory(target: Path) -> Iterator[Path]:
    """Like `atomic_directory`, for long work: leftovers of an interrupted call are kept, and the caller resumes."""
    unfinished = target.with_name(f"{target.name}.unfinished")
    unfinished.mkdir(parents=True, exist_ok=True)
    with exclusive_lock(unfinished):
        for leftover in unfinished.glob(".*.tmp"):
            leftover.unlink()
        yield unfinished
        (unfinished / LOCK).unlink(missing_ok=True)
        os.replace(unfinished, target)


@contextmanager
def exclusive_lock(folder: Path, on_wait: Callable[[], None] | None = None) -> Iterator[None]:
    """Lock a folder against other processes. If it is locked, raise or, with `on_wait`, call that and wait."""
    lock = FileLock(folder / LOCK)
    try:
        lock.acquire(timeout=0)
    except Timeout as error:
        if on_wait is None:
            raise ValueError(f"another process is writing to {folder}") from error
        on_wait()
        try:
            lock.acquire()
        except FileNotFoundError as gone:
            raise ValueError(f"{folder} was removed by the process that was writing to it: run again") from gone
    try:
        yield
    finally:
        lock.release()


def check_format(version: object, file: Path) -> None:
    """Refuse what another version of Tercet wrote in another format, in one line."""
    if version != FORMAT_VERSION:
        found = "has no format version" if version is None else f"has format version {version!r}"
        raise ValueError(
            f"{file} {found}, and this Tercet reads version {FORMAT_VERSION}: make it again, or use the Tercet that "
            "wrote it"
        )


def sha256_of(files: Iterable[Path]) -> str:
    """Return the SHA-256 of the concatenated content of the files."""
    digest = hashlib.sha256()
    for file in files:
        with file.open("rb") as stream:
            while block := stream.read(1 << 22):
                digest.update(block)
    return digest.hexdigest()


def sync_file(file: Path) -> None:
    """Flush the content of a file to disk, so that a power cut cannot leave a name without content."""
    with file.open("rb") as stream:
        os.fsync(stream.fileno())


def _sync_folder(folder: Path) -> None:
    """Flush the folder entry to disk, so that the name survives a power cut."""
    if os.name == "nt":  # Windows cannot open a folder
        return
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
