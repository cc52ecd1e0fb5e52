"""Atomic files and folders, locks and checksums. A final name never holds incomplete content."""

import errno
import hashlib
import json
import os
import re
import shutil
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import lru_cache
from glob import escape
from pathlib import Path
from typing import Any

import numpy as np
from filelock import FileLock, Timeout
from numpy.typing import DTypeLike

FORMAT_VERSION = 2
"""Of run folders, saved models, checkpoints, indexes, features and mined tables."""
LOCK = ".lock"
TEMPORARY = re.compile(r"\..+\.(\d+)\.tmp")  # .NAME.PID.tmp
MACHINE = "machine.json"
"""Written last into a run folder, when the run is finished; holds the checksums of the other files."""
CHECKSUMS = "checksums"
"""Key of a manifest: file name -> SHA-256 of every file that the manifest vouches for."""
SEAL = "seal"
"""Key of a manifest: SHA-256 of the rest of it."""


@contextmanager
def atomic_path(file: Path) -> Iterator[Path]:
    """Yield a temporary path in the same folder; it is synced and renamed at the end, and removed on failure."""
    _remove_stale(file)
    temporary = file.with_name(f".{file.name}.{os.getpid()}.tmp")
    try:
        yield temporary
        sync_file(temporary)
        os.replace(temporary, file)
    except OSError as error:
        temporary.unlink(missing_ok=True)
        _raise_if_no_room(file, error)
        raise
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    _sync_folder(file.parent)


def _remove_stale(file: Path) -> None:
    """Remove temporary files of this one that killed processes left, for folders that are written without a lock."""
    for leftover in file.parent.glob(f".{escape(file.name)}.*.tmp"):
        match = TEMPORARY.fullmatch(leftover.name)
        if match is not None and not _is_running(int(match[1])):
            leftover.unlink(missing_ok=True)


def _is_running(process: int) -> bool:
    if os.name == "nt":  # os.kill would end it
        return True
    try:
        os.kill(process, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:  # a process of another user
        pass
    return True


def is_full_disk(error: OSError) -> bool:
    """Whether there is no room left. `numpy.save` reports that without an error number."""
    return (
        error.errno in (errno.ENOSPC, errno.EDQUOT) or re.search(r"requested and \d+ written", str(error)) is not None
    )


def _raise_if_no_room(file: Path, error: OSError) -> None:
    if is_full_disk(error):
        why = "the disk is full. Earlier files are intact: free space"
    elif error.errno == errno.EFBIG:
        why = "larger than the file system or `ulimit -f` allows. Earlier files are intact: use another disk"
    else:
        return
    raise ValueError(f"{file}: {why} and run the command again to resume") from error


def allocated_array(file: Path, dtype: DTypeLike, shape: tuple[int, ...]) -> np.memmap:
    """Create a memory-mapped .npy file whose blocks are allocated on disk.

    Without that the file is sparse, and the write for which there is no room ends the process by SIGBUS.
    """
    try:
        array = np.lib.format.open_memmap(file, mode="w+", dtype=np.dtype(dtype), shape=shape)
        if hasattr(os, "posix_fallocate"):  # not on Windows and macOS
            with file.open("r+b") as stream:
                os.posix_fallocate(stream.fileno(), 0, file.stat().st_size)
    except OSError as error:
        if error.errno == errno.EOPNOTSUPP:  # a file system that cannot allocate ahead
            return array
        file.unlink(missing_ok=True)
        _raise_if_no_room(file, error)
        raise
    return array


def atomic_write(file: Path, data: bytes) -> None:
    with atomic_path(file) as temporary:
        temporary.write_bytes(data)


def write_json(file: Path, content: Any) -> None:
    atomic_write(file, (json.dumps(content, indent=2, sort_keys=True) + "\n").encode())


def write_manifest(file: Path, content: dict[str, Any]) -> None:
    """Write JSON with a checksum of itself, so that damage of the manifest is seen as well."""
    plain = json.loads(json.dumps(content))
    write_json(file, plain | {SEAL: _seal_of(plain)})


def checked_manifest(content: object, file: Path, remedy: str) -> dict[str, Any]:
    """Return the content of a manifest without its seal; `ValueError`, naming the file, if it is not what was written.

    `remedy`: what to do.
    """
    if not isinstance(content, dict):
        raise ValueError(f"{file} is damaged: expected an object, got {type(content).__name__}; {remedy}")
    check_format(content.get("format_version"), file)
    plain = {name: value for name, value in content.items() if name != SEAL}
    if content.get(SEAL) != _seal_of(plain):
        raise changed_file(file, remedy)
    return plain


def _seal_of(content: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


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
        except BaseException as error:
            shutil.rmtree(unfinished, ignore_errors=True)
            if isinstance(error, OSError):
                _raise_if_no_room(target, error)
            raise


@contextmanager
def resumable_directory(target: Path) -> Iterator[Path]:
    """Like `atomic_directory`, for long work: leftovers of an interrupted call are kept, and the caller resumes."""
    unfinished = target.with_name(f"{target.name}.unfinished")
    unfinished.mkdir(parents=True, exist_ok=True)
    with exclusive_lock(unfinished):
        try:
            yield unfinished
        except OSError as error:
            _raise_if_no_room(target, error)
            raise
        (unfinished / LOCK).unlink(missing_ok=True)
        os.replace(unfinished, target)


@contextmanager
def exclusive_lock(folder: Path, on_wait: Callable[[], None] | None = None) -> Iterator[None]:
    """Lock a folder against other processes. If it is locked, raise or, with `on_wait`, call that and wait.

    Only the holder of the lock writes to the folder: temporary files in it were left by killed processes and are
    removed.
    """
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
        remove_temporaries(folder)
        yield
    finally:
        lock.release()


def remove_temporaries(folder: Path) -> None:
    """Remove the temporary files of `atomic_path` in a folder and its subfolders."""
    for pattern in (".*.tmp", "*/.*.tmp"):
        for file in folder.glob(pattern):
            if TEMPORARY.fullmatch(file.name):
                file.unlink(missing_ok=True)


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


def checksums_of(folder: Path, names: Iterable[str]) -> dict[str, str]:
    """Return name -> SHA-256, as a manifest holds it. Files are read in parallel."""
    names = sorted(names)
    with ThreadPoolExecutor() as pool:
        return dict(zip(names, pool.map(lambda name: sha256_of([folder / name]), names), strict=True))


def check_checksums(folder: Path, checksums: object, manifest: Path, remedy: str) -> None:
    """Raise `ValueError`, naming the file, unless every file has the checksum in the manifest. `remedy`: what to do."""
    if not isinstance(checksums, dict) or not checksums:
        raise ValueError(f"{manifest} has no checksums: it is damaged, or of an earlier version: {remedy}")
    present = [name for name in checksums if (folder / name).is_file()]
    found = checksums_of(folder, present)
    for name, checksum in checksums.items():
        if found.get(name) != checksum:
            raise changed_file(folder / name, remedy)


def check_checksums_once(folder: Path, checksums: object, manifest: Path, remedy: str) -> None:
    """`check_checksums`, once per process while the sizes and modification times of the files are the same."""
    if not isinstance(checksums, dict):
        raise ValueError(f"{manifest} has no checksums: {remedy}")
    status = {name: (folder / name).stat() for name in checksums if (folder / name).is_file()}
    _check_unchanged(
        folder.resolve(),
        tuple(sorted(checksums.items())),
        tuple(sorted((name, each.st_size, each.st_mtime_ns) for name, each in status.items())),
        manifest,
        remedy,
    )


@lru_cache(maxsize=64)
def _check_unchanged(
    folder: Path,
    checksums: tuple[tuple[str, str], ...],
    status: tuple[tuple[str, int, int], ...],
    manifest: Path,
    remedy: str,
) -> None:
    check_checksums(folder, dict(checksums), manifest, remedy)


def changed_file(file: Path, remedy: str) -> ValueError:
    """The error for a file whose checksum is not the recorded one."""
    return ValueError(f"{file} is missing or was changed: {remedy}")


def seal(file: Path) -> None:
    """Append the SHA-256 of its content to a file of unfinished work, so that damage is seen when it is resumed."""
    digest = bytes.fromhex(sha256_of([file]))
    with file.open("ab") as stream:
        stream.write(digest)


def is_intact(file: Path) -> bool:
    """Whether a sealed file exists and has the content that was sealed."""
    digest = hashlib.sha256()
    try:
        with file.open("rb") as stream:
            remaining = file.stat().st_size - digest.digest_size
            while remaining > 0 and (block := stream.read(min(1 << 22, remaining))):
                digest.update(block)
                remaining -= len(block)
            return stream.read() == digest.digest()
    except OSError:
        return False


def sealed_content(file: Path) -> bytes | None:
    """The content of a sealed file; None if it is missing or damaged."""
    return file.read_bytes()[: -hashlib.sha256().digest_size] if is_intact(file) else None


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
