"""Killed between any two renames, every command resumes to the same files, and the next call leaves no litter.

The kill is simulated in the process: from a rename on, nothing is renamed or removed any more, as after `kill -9`.
"""

import errno
import functools
import json
import os
import resource
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import tercet
from tercet import runs, storage
from tercet.cli.main import main
from tercet.mining.mine import MiningConfig, mine
from tests.mining.test_mine import MODEL as MINING_MODEL
from tests.mining.test_mine import scorer_of, world
from tests.search.test_index import MODEL, Embedder, draw, images_in_folder, open_index, update_index
from tests.training.small_training import SMALL


class Killed(BaseException):
    pass


class Kill:
    """Kills at the rename of this number; `renames` counts those of a whole call."""

    def __init__(self, monkeypatch, at=None):
        self.at, self.renames, self.dead = at, 0, False
        for owner, name in ((os, "replace"), (Path, "rename")):
            monkeypatch.setattr(owner, name, self._counted(getattr(owner, name)))
        for owner, name in ((Path, "unlink"), (shutil, "rmtree"), (Path, "rmdir")):
            monkeypatch.setattr(owner, name, self._alive(getattr(owner, name)))

    def _counted(self, call):
        def rename(*arguments, **named):
            self.renames += 1
            self.dead |= self.renames == self.at
            return self._alive(call)(*arguments, **named)

        return rename

    def _alive(self, call):
        def run(*arguments, **named):
            if self.dead:
                raise Killed
            return call(*arguments, **named)

        return run


def renames_of(work):
    with pytest.MonkeyPatch.context() as monkeypatch:
        kill = Kill(monkeypatch)
        work()
    return kill.renames


def killed(work, at):
    with pytest.MonkeyPatch.context() as monkeypatch:
        Kill(monkeypatch, at)
        with pytest.raises(Killed):
            work()


def crash_points(count, every):
    """The numbers of all renames, or of the first, one in the middle and the last."""
    return range(1, count + 1) if every else sorted({1, count // 2, count})


EVERY = pytest.mark.parametrize("every", [False, pytest.param(True, marks=pytest.mark.slow)])


def files(folder, *, without=()):
    found = (file for file in folder.rglob("*") if file.is_file())
    return {str(file.relative_to(folder)): file.read_bytes() for file in found if file.name not in without}


def assert_no_litter(folder):
    assert not [file.name for file in folder.rglob(".*") if file.name != storage.LOCK]


def test_an_index_killed_at_any_rename_resumes(tmp_path):
    draw(tmp_path / "photos", "abcdefgh")

    def index(name):
        return update_index(tmp_path / name, images_in_folder(tmp_path / "photos"), Embedder(), MODEL)

    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setattr("tercet.search.index.EMBED_BATCH_SIZE", 3)
        count = renames_of(lambda: index("whole"))
        assert count >= 4  # three batches and index.json
        for at in range(1, count + 1):
            killed(lambda at=at: index(f"killed_{at}"), at)
            assert index(f"killed_{at}").added == 8
            assert_no_litter(tmp_path / f"killed_{at}")
            assert files(tmp_path / f"killed_{at}") == files(tmp_path / "whole")


def test_an_update_killed_at_any_rename_leaves_the_old_index_or_the_new_one(tmp_path):
    draw(tmp_path / "photos", "abcd")
    folder = tmp_path / "index"
    update_index(folder, images_in_folder(tmp_path / "photos"), Embedder(), MODEL)
    shutil.copytree(folder, tmp_path / "before")
    draw(tmp_path / "photos", "efg")

    def update():
        update_index(folder, images_in_folder(tmp_path / "photos"), Embedder(), MODEL)

    count = renames_of(update)
    for at in range(1, count + 1):
        shutil.rmtree(folder)
        shutil.copytree(tmp_path / "before", folder)
        killed(update, at)
        assert len(open_index(folder).items) in (4, 7)
        update()
        assert len(open_index(folder).items) == 7
        assert_no_litter(folder)


def test_a_folder_of_others_is_still_refused(tmp_path):
    draw(tmp_path / "photos", "a")
    (tmp_path / "index").mkdir()
    (tmp_path / "index" / ".notes.tmp").write_text("mine")
    with pytest.raises(ValueError, match=r"contains \.notes\.tmp"):
        update_index(tmp_path / "index", images_in_folder(tmp_path / "photos"), Embedder(), MODEL)
    assert (tmp_path / "index" / ".notes.tmp").read_text() == "mine"


@EVERY
def test_a_run_killed_at_any_rename_resumes(tmp_path, every):
    changing = ("machine.json", "log.txt", "ranks.npz")

    def train(name):
        return tercet.train(**SMALL, runs=tmp_path / name, checkpoint_every=3).folder

    whole = []
    count = renames_of(lambda: whole.append(train("whole")))
    for at in crash_points(count, every):
        killed(lambda at=at: train(f"killed_{at}"), at)
        resumed = train(f"killed_{at}")
        assert_no_litter(resumed)
        assert {path.name for path in resumed.iterdir()} == {path.name for path in whole[0].iterdir()}
        assert files(resumed, without=changing) == files(whole[0], without=changing)
        with np.load(resumed / "ranks.npz") as one, np.load(whole[0] / "ranks.npz") as other:
            assert all(np.array_equal(one[name], other[name]) for name in other.files)


def test_a_run_killed_while_its_leftovers_are_removed(tmp_path, monkeypatch):
    """Finished, but its lock and checkpoints are still there."""
    with monkeypatch.context() as patched:
        patched.setattr("tercet.runs.remove_leftovers", lambda folder: (_ for _ in ()).throw(Killed()))
        with pytest.raises(Killed):
            tercet.train(**SMALL, runs=tmp_path)
    (folder,) = tmp_path.iterdir()
    (folder / ".weights.safetensors.123.tmp").write_bytes(b"half")
    assert (folder / "state").exists()
    tercet.train(**SMALL, runs=tmp_path)
    assert not (folder / "state").exists()
    assert not [path.name for path in folder.iterdir() if path.name.startswith(".")]


def test_mining_killed_at_any_rename_resumes(tmp_path):
    w = world()

    def run(name):
        mine(scorer_of(w), w.data, tmp_path / name, MiningConfig(8, 5), MINING_MODEL, save_interval=0.0)

    count = renames_of(lambda: run("whole"))
    for at in range(1, count + 1):
        killed(lambda at=at: run(f"killed_{at}"), at)
        run(f"killed_{at}")
        assert_no_litter(tmp_path / f"killed_{at}")
        assert files(tmp_path / f"killed_{at}") == files(tmp_path / "whole")


@EVERY
def test_features_killed_at_any_rename_resume(tmp_path, every):
    def extract(name):
        command = ["features", "scenes:9", str(tmp_path / name)]
        main([*command, "--image-encoder", "none", "--text-encoder", "bag-of-words"])

    count = renames_of(lambda: extract("whole"))
    for at in crash_points(count, every):
        killed(lambda at=at: extract(f"killed_{at}"), at)
        extract(f"killed_{at}")
        assert_no_litter(tmp_path / f"killed_{at}")
        assert files(tmp_path / f"killed_{at}") == files(tmp_path / "whole")


def test_a_folder_without_a_lock_is_swept_when_the_same_file_is_written_again(tmp_path):
    """Reports and evaluations: two processes may write them at once."""
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    left = tmp_path / f".tables.md.{ended.pid}.tmp"
    others = [
        tmp_path / f".tables.md.{os.getppid()}.tmp",  # a process that runs
        tmp_path / ".tables.md.notes.tmp",
        tmp_path / f".runs.csv.{ended.pid}.tmp",
        tmp_path / f".tables.md.{ended.pid}",
    ]
    for file in (left, *others):
        file.write_text("half")
    runs.write_artifact(tmp_path, "tables.md", "whole")
    assert not left.exists()
    assert all(file.exists() for file in others)


def test_a_kill_while_the_root_is_checked_leaves_nothing(tmp_path):
    count = renames_of(lambda: runs.make_root(tmp_path / "runs"))
    assert (count, list((tmp_path / "runs").iterdir())) == (0, [])


# A full disk.


def test_a_mapped_file_is_allocated_before_it_is_written(tmp_path):
    array = storage.allocated_array(tmp_path / "a.npy", np.float32, (1000, 256))
    status = (tmp_path / "a.npy").stat()
    assert status.st_blocks * 512 >= status.st_size >= 1000 * 256 * 4
    array[:] = 1.0
    array.flush()
    assert np.load(tmp_path / "a.npy").sum() == 256_000


def no_room(*arguments):
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


@pytest.mark.parametrize("command", ["features", "convert"])
def test_no_room_for_an_array_is_one_line(tmp_path, monkeypatch, capsys, command):
    monkeypatch.setattr(os, "posix_fallocate", no_room)
    arguments = ["data", "convert", "scenes:9", str(tmp_path / "out")]
    if command == "features":
        arguments = ["features", "scenes:9", str(tmp_path / "out")]
        arguments += ["--image-encoder", "none", "--text-encoder", "bag-of-words"]
    with pytest.raises(SystemExit) as stopped:
        main(arguments)
    assert stopped.value.code == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "train_ims.npy: the disk is full" in line


def test_no_room_for_mined_lists_is_one_line(tmp_path, monkeypatch):
    w = world()
    with monkeypatch.context() as patched:
        patched.setattr(os, "posix_fallocate", no_room)
        with pytest.raises(ValueError, match=r"i2t\.npy: the disk is full"):
            mine(scorer_of(w), w.data, tmp_path / "table", MiningConfig(8, 5), MINING_MODEL)
    mine(scorer_of(w), w.data, tmp_path / "table", MiningConfig(8, 5), MINING_MODEL)


def test_what_numpy_says_of_a_full_disk_is_understood(tmp_path):
    with (
        pytest.raises(ValueError, match=r"vectors\.npy: the disk is full"),
        storage.atomic_path(tmp_path / "vectors.npy"),
    ):
        raise OSError("15360 requested and 3040 written")
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
def test_a_file_larger_than_allowed_is_one_line(tmp_path):
    """A real limit in a real process: a write beyond it neither ends the process by a signal nor loses work."""
    command = [sys.executable, "-m", "tercet", "features", "scenes:90", str(tmp_path / "out")]
    command += ["--image-encoder", "none", "--text-encoder", "bag-of-words"]
    limit = functools.partial(resource.setrlimit, resource.RLIMIT_FSIZE, (100_000, 100_000))
    done = subprocess.run(command, preexec_fn=limit, capture_output=True, text=True)
    assert done.returncode == 2, done
    (line,) = done.stderr.splitlines()
    assert "train_txt.npy: larger than the file system or `ulimit -f` allows" in line
    main(command[3:])
    assert "checksums" in json.loads((tmp_path / "out" / "features.json").read_text())


@EVERY
def test_a_run_with_a_queue_and_learned_settings_killed_at_a_rename_resumes(tmp_path, every):
    """The queue, the moving average and the learned temperature are part of the checkpoint."""
    objective = "nt-xent:learn=temperature + 0.1*triplet:reduction=mean"
    changing = ("machine.json", "log.txt", "ranks.npz")

    def train(name):
        given = SMALL | {"objective": objective, "queue_size": 40, "queue_momentum": 0.5}
        return tercet.train(**given, runs=tmp_path / name, checkpoint_every=1).folder

    whole = []
    count = renames_of(lambda: whole.append(train("whole")))
    for at in crash_points(count, every)[1:2] if not every else crash_points(count, every):
        killed(lambda at=at: train(f"killed_{at}"), at)
        assert list((tmp_path / f"killed_{at}").glob("*/state/*.pt")) or every
        assert files(train(f"killed_{at}"), without=changing) == files(whole[0], without=changing)
    learned = [line["learned"] for line in runs.read_lines(whole[0]) if "learned" in line]
    assert learned[0]["nt-xent:temperature"] != learned[-1]["nt-xent:temperature"] != 0.1
