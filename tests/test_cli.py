"""The command line. Signals, kills and locks are tested on processes, everything else in this one."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import time

import pytest

from tercet import compare, runs
from tests.commands import tercet


def process(*arguments, **options):
    """`python -m tercet`, as a user runs it."""
    command = [sys.executable, "-m", "tercet", *map(str, arguments)]
    # A test suite started in the background ignores SIGINT, and its children inherit that.
    default = lambda: signal.signal(signal.SIGINT, signal.SIG_DFL)  # noqa: E731
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    return subprocess.Popen(command, text=True, preexec_fn=default, **pipes | options)


def until(condition, seconds=120):
    """Wait for a condition; its value."""
    deadline = time.monotonic() + seconds
    while not (value := condition()):
        assert time.monotonic() < deadline, "timed out"
        time.sleep(0.02)
    return value


def test_help_imports_nothing_heavy():
    program = (
        "import sys, tercet, tercet.cli.main; sys.argv = ['tercet', '--help']; tercet.cli.main.main();"
        "from tercet.comparison.settings import CompareSettings;"
        "heavy = {'torch', 'numpy', 'scipy', 'matplotlib'} & set(sys.modules); assert not heavy, heavy"
    )
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    assert "compare" in run.stdout


def test_user_errors_get_one_line_and_exit_code_2(tmp_path):
    (tmp_path / "file").touch()
    for arguments, message in [
        (["compar"], "unknown command (did you mean compare?); known: fit, compare"),
        (["compare", "--objectives", "tripet"], "did you mean triplet"),
        (["compare", "--seeds", "0"], "--seeds must be a whole number of at least 1"),
        (["compare", "--metric", "i2t_medr"], "'i2t_medr' cannot be tested"),
        (["compare", "nowhere.csv"], "nowhere.csv: no such file or folder"),
        (["compare", "--objectives", "cir/lin", "cir+lin"], "cir/lin more than once"),
        (["compare", "--objectives", "nowhere.py:fn"], "no file 'nowhere.py'"),
        (["compare", "--runs", "file/inside"], "cannot write run folders to file/inside"),
    ]:
        run = tercet(*arguments, cwd=tmp_path)
        assert run.returncode == 2, run
        assert message in run.stderr
        assert [path.name for path in tmp_path.iterdir()] == ["file"]


SMALL = ["compare", "scenes:200", "--epochs", "1", "--seeds", "2", "--no-tune"]
OWN = "def own(similarity, positives):\n    return {sign}positives.to(similarity.dtype)\n"


def table(folder):
    (file,) = (folder / "runs").glob("comparison_*/comparison.json")
    return json.loads(file.read_text())["results"]


def folders(root):
    return sorted(path.name for path in runs.run_folders(root / "runs"))


def test_compare_from_end_to_end_then_again_from_its_run_folders(tmp_path):
    """Real scenes, heads, objectives (one of them custom), evaluation, run folders and the table."""
    (tmp_path / "mine.py").write_text(OWN.format(sign="-"))
    command = [*SMALL, "--objectives", "triplet-sh", "nt-xent", "mine.py:own"]
    started = process(*command, cwd=tmp_path)
    first, errors = started.communicate()
    assert started.returncode == 0, errors
    results = table(tmp_path)
    assert [len(results[name]) for name in ("triplet-sh", "nt-xent", "mine.py:own")] == [2, 2, 2]
    chance = 100 * 10 / 67
    assert all(run["metrics"]["t2i_r10"] > 2 * chance for run in results["nt-xent"])
    assert results["nt-xent"][0]["metrics"] != results["nt-xent"][1]["metrics"]
    assert len({run["steps"] for runs in results.values() for run in runs}) == 1
    assert len(folders(tmp_path)) == 6
    assert tercet(*command, cwd=tmp_path).stdout == first
    assert len(folders(tmp_path)) == 6


def small_comparison(root, *objectives):
    """As `SMALL` without its report, which takes longer than its runs."""
    return compare(data="scenes:200", epochs=1, seeds=2, no_tune=True, objectives=objectives, runs=root / "runs")


def test_an_edited_objective_is_another_run(tmp_path):
    file = tmp_path / "mine.py"
    for count, sign in ((2, "-"), (4, "")):
        file.write_text(OWN.format(sign=sign))
        small_comparison(tmp_path, f"{file}:own")
        assert len(folders(tmp_path)) == count


def test_a_killed_comparison_resumes(tmp_path):
    """kill -9 as soon as one run is finished."""
    killed = process(*SMALL, "--objectives", "triplet-sh", "nt-xent", cwd=tmp_path)
    until(lambda: list((tmp_path / "runs").glob("*/machine.json")) or killed.poll() is not None)
    killed.kill()
    killed.communicate()
    resumed, undisturbed = (small_comparison(root, "triplet-sh", "nt-xent") for root in (tmp_path, tmp_path / "other"))
    assert [table.rows for table in resumed.tables()] == [table.rows for table in undisturbed.tables()]
    assert resumed.significance.to_dict() == undisturbed.significance.to_dict()  # the verdict has seconds
    assert len(folders(tmp_path)) == 4


@pytest.mark.slow
def test_a_comparison_killed_at_several_times_resumes(tmp_path):
    command = [*SMALL, "--objectives", "triplet-sh", "nt-xent"]
    undisturbed = tercet(*command, "--runs", "other", cwd=tmp_path)
    for delay in (3.0, 4.0, 5.0):
        killed = process(*command, cwd=tmp_path)
        with contextlib.suppress(subprocess.TimeoutExpired):
            killed.wait(delay)
        killed.kill()
        killed.communicate()
    finished = tercet(*command, cwd=tmp_path)
    tables = [done.stdout.split("\n\n")[0] for done in (finished, undisturbed)]  # the verdict has seconds
    assert tables[0] == tables[1]
    assert len(folders(tmp_path)) == 4


@pytest.mark.slow
def test_processes_of_a_killed_comparison_end_with_it(tmp_path):
    """kill -9 of the parent: its runs notice, write a checkpoint and stop, which releases their pipe."""
    parent = process("compare", "scenes:600", "--no-tune", "--epochs", "500", "--processes", "2", cwd=tmp_path)
    until(lambda: list((tmp_path / "runs").glob("*/log.txt")) or parent.poll() is not None)
    runs = children(parent.pid)
    assert runs
    parent.kill()
    parent.communicate()
    until(lambda: not any(is_running(run) for run in runs))


def children(pid):
    with open(f"/proc/{pid}/task/{pid}/children") as listed:
        return [int(child) for child in listed.read().split()]


def is_running(pid):
    try:
        os.kill(pid, 0)
        with open(f"/proc/{pid}/stat") as stat:  # nobody may be left to collect its exit code
            return stat.read().rpartition(")")[2].split()[0] != "Z"
    except (ProcessLookupError, FileNotFoundError):
        return False


def test_a_failed_run_does_not_stop_the_others(tmp_path):
    """One objective raises, one turns NaN, one kills its process; the rest is compared, and all three are reported."""
    (tmp_path / "mine.py").write_text(
        "import os, signal\n"
        "steps = 0\n"
        "def later():\n"
        "    global steps\n"
        "    steps += 1\n"
        "    return steps > 20\n"  # the checks before training pass
        "def raises(S, positives):\n"
        "    if later():\n"
        "        raise KeyError('nothing there')\n"
        "    return -positives.to(S.dtype)\n"
        "def nan(S, positives):\n"
        "    return -positives.to(S.dtype) * float('nan' if later() else 1)\n"
        "def dies(S, positives):\n"
        "    if later():\n"
        "        os.kill(os.getpid(), signal.SIGKILL)\n"
        "    return -positives.to(S.dtype)\n"
    )
    own = ["mine.py:raises", "mine.py:nan", "mine.py:dies"]
    small = ["compare", "scenes:200", "--no-tune", "--epochs", "2", "--seeds", "1", "--processes", "2"]
    run = tercet(*small, "--objectives", "nt-xent", *own, cwd=tmp_path)
    assert run.returncode == 1, run.stderr
    document = json.loads(next((tmp_path / "runs").glob("comparison_*/comparison.json")).read_text())
    assert sorted(document["results"]) == ["nt-xent"]
    failed = {failure["name"].split(" s")[0]: failure["why"] for failure in document["failures"]}
    assert "nothing there" in failed["mine.py:raises"]
    assert "NaN" in failed["mine.py:nan"] or "nan" in failed["mine.py:nan"]
    assert "SIGKILL" in failed["mine.py:dies"]
    assert len(document["failures"]) == 3
    assert "runs failed and are not included" in " ".join(run.stdout.split())


@pytest.mark.slow
def test_two_processes_may_compare_into_one_folder(tmp_path):
    command = [*SMALL, "--objectives", "triplet-sh", "--seeds", "1"]
    both = [process(*command, cwd=tmp_path) for _ in range(2)]
    for each in both:
        _, errors = each.communicate()
        assert each.returncode == 0, errors
    assert len(folders(tmp_path)) == 1


def test_a_damaged_run_folder_is_named(tmp_path):
    small_comparison(tmp_path, "triplet-sh")
    run = folders(tmp_path)[0]
    (tmp_path / "runs" / run / "metrics.jsonl").write_text("")
    again = tercet(*SMALL, "--objectives", "triplet-sh", cwd=tmp_path)
    assert again.returncode == 1
    assert f"{run}/metrics.jsonl is missing or was changed" in again.stderr


@pytest.mark.slow
def test_ctrl_c_while_a_run_is_started_is_not_lost(tmp_path):
    """An exception raised in a hook after a fork is printed and dropped: the signal handler must not raise one."""
    script = (
        "import os, signal, sys; from tercet.cli.main import main\n"
        "os.register_at_fork(after_in_parent=lambda: signal.raise_signal(signal.SIGINT))\n"
        "sys.argv[1:] = ['compare', 'scenes:200', '--no-tune', '--epochs', '200']; main()"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=tmp_path, capture_output=True, text=True, timeout=180, check=False
    )
    assert done.returncode == 130
    assert "run the command again to resume" in done.stderr
    assert "rsum" not in done.stderr


@pytest.mark.slow
def test_ctrl_c_says_that_nothing_is_lost(tmp_path):
    command = ("compare", "scenes:200", "--no-tune", "--epochs", "200", "--objectives", "nt-xent", "triplet")
    interrupted = process(*command, cwd=tmp_path)
    until(lambda: list((tmp_path / "runs").glob("*/log.txt")) or interrupted.poll() is not None)
    interrupted.send_signal(signal.SIGINT)
    _, errors = interrupted.communicate(timeout=180)
    assert interrupted.returncode == 130, errors
    assert "finished work is kept, run the command again to resume" in errors
    assert "Traceback" not in errors


def test_checkpoints_of_every_original_can_be_imported(tmp_path):
    from tercet import load
    from tercet.models.convert.state_dicts import CHECKPOINT_FORMATS
    from tests.models.parity import GOLDENS

    files = {
        "vsepp": "ckpt_vsepp.pth.tar",
        "vsrn": "ckpt_vsrn_f30k.pth.tar",
        "vse-infinity": "ckpt_vseinf_region_bigru.pth",
        "scan": "ckpt_scan.pth.tar",
        "bfan": "ckpt_bfan.pth.tar",
        "xvlm": "ckpt_xvlm_finetuned.pth",
    }
    assert set(files) == set(CHECKPOINT_FORMATS)
    for system, file in files.items():
        done = tercet("import", system, str(GOLDENS / file), str(tmp_path / system))
        assert done.returncode == 0, done.stderr
        assert load(tmp_path / system).system == system
    done = tercet("import", "bfan", str(GOLDENS / files["scan"]), str(tmp_path / "wrong"))
    assert done.returncode == 2
    assert "trained with option cross_attn, which BFAN does not have" in done.stderr


def test_a_reader_that_closes_the_pipe_gets_no_message():
    """As in `tercet compare --help | head -1`; the reader is gone before a line is written."""
    for arguments in (["compare", "--help"], ["list", "objectives"]):
        reader, writer = os.pipe()
        os.close(reader)
        command = [sys.executable, "-m", "tercet", *arguments]
        done = subprocess.run(command, stdout=writer, stderr=subprocess.PIPE, text=True)
        os.close(writer)
        assert done.returncode in (1, 141)  # 1 where rich writes
        assert done.stderr == ""
