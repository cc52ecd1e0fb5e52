"""The command line in its own process, as a user runs it."""

import contextlib
import json
import signal
import subprocess
import sys
import time


def tercet(*arguments, **options):
    command = [sys.executable, "-m", "tercet", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, **options)


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
        (["compar"], "unknown command; known: compare"),
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
        assert "Traceback" not in run.stderr
        assert [path.name for path in tmp_path.iterdir()] == ["file"]


SMALL = ["compare", "scenes:600", "--epochs", "2", "--seeds", "2"]
OWN = "def own(similarity, positives):\n    return {sign}positives.to(similarity.dtype)\n"


def table(folder):
    (file,) = (folder / "runs").glob("comparison_*/comparison.json")
    return json.loads(file.read_text())["results"]


def folders(root):
    return sorted(path.name for path in (root / "runs").iterdir() if not path.name.startswith("comparison_"))


def test_compare_from_end_to_end_then_again_from_its_run_folders(tmp_path):
    """Real scenes, heads, objectives (one of them custom), evaluation, run folders and the table."""
    (tmp_path / "mine.py").write_text(OWN.format(sign="-"))
    command = [*SMALL, "--objectives", "triplet-sh", "nt-xent", "mine.py:own"]
    first = tercet(*command, cwd=tmp_path)
    assert first.returncode == 0, first.stderr
    results = table(tmp_path)
    assert [len(results[name]) for name in ("triplet-sh", "nt-xent", "mine.py:own")] == [2, 2, 2]
    chance = 100 * 10 / 200
    assert all(run["metrics"]["t2i_r10"] > 3 * chance for run in results["nt-xent"])
    assert results["nt-xent"][0]["metrics"] != results["nt-xent"][1]["metrics"]
    assert len({run["steps"] for runs in results.values() for run in runs}) == 1
    assert len(folders(tmp_path)) == 6
    second = tercet(*command, cwd=tmp_path)
    assert second.stdout == first.stdout
    assert len(folders(tmp_path)) == 6
    (tmp_path / "mine.py").write_text(OWN.format(sign=""))  # an edited objective is another run
    third = tercet(*command, cwd=tmp_path)
    assert third.stdout != first.stdout
    assert len(folders(tmp_path)) == 8


def test_a_killed_comparison_resumes(tmp_path):
    command = [*SMALL, "--objectives", "triplet-sh", "nt-xent"]
    undisturbed = tercet(*command, "--runs", "other", cwd=tmp_path)
    for delay in (3.0, 4.0, 5.0):
        process = subprocess.Popen([sys.executable, "-m", "tercet", *command], cwd=tmp_path, stderr=subprocess.PIPE)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(delay)
        process.kill()
        process.communicate()
    finished = tercet(*command, cwd=tmp_path)
    assert finished.returncode == 0, finished.stderr
    assert finished.stdout.split("Report: ")[0] == undisturbed.stdout.split("Report: ")[0]
    assert len(folders(tmp_path)) == 4


def test_processes_of_a_killed_comparison_end_with_it(tmp_path):
    """kill -9 of the parent: its runs notice, write a checkpoint and stop."""
    process = subprocess.Popen(
        [sys.executable, "-m", "tercet", "compare", "scenes:600", "--epochs", "500", "--processes", "1"],
        cwd=tmp_path,
        stderr=subprocess.DEVNULL,
    )
    while not list((tmp_path / "runs").glob("*/log.txt")) and process.poll() is None:
        time.sleep(0.1)
    process.kill()
    process.wait()
    (log,) = (tmp_path / "runs").glob("*/log.txt")
    metrics = log.with_name("metrics.jsonl")
    previous = -1
    for _ in range(60):
        time.sleep(1)
        now = metrics.stat().st_size if metrics.exists() else 0
        if now == previous:
            return
        previous = now
    raise AssertionError("a run of a killed comparison is still training")


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
    run = tercet(*SMALL, "--objectives", "nt-xent", "triplet", *own, cwd=tmp_path)
    assert run.returncode == 1, run.stderr
    document = json.loads(next((tmp_path / "runs").glob("comparison_*/comparison.json")).read_text())
    assert sorted(document["results"]) == ["nt-xent", "triplet"]
    failed = {failure["name"].split(" s")[0]: failure["why"] for failure in document["failures"]}
    assert "nothing there" in failed["mine.py:raises"]
    assert "NaN" in failed["mine.py:nan"] or "nan" in failed["mine.py:nan"]
    assert "SIGKILL" in failed["mine.py:dies"]
    assert len(document["failures"]) == 6
    assert "runs failed and are not included" in " ".join(run.stdout.split())


def test_two_processes_may_compare_into_one_folder(tmp_path):
    command = [sys.executable, "-m", "tercet", *SMALL, "--objectives", "triplet-sh", "--seeds", "1"]
    both = [subprocess.Popen(command, cwd=tmp_path, stderr=subprocess.PIPE) for _ in range(2)]
    for process in both:
        _, errors = process.communicate()
        assert process.returncode == 0, errors
    assert len(folders(tmp_path)) == 1


def test_a_damaged_run_folder_is_named(tmp_path):
    command = [*SMALL, "--objectives", "triplet-sh", "--seeds", "1"]
    tercet(*command, cwd=tmp_path)
    (run,) = folders(tmp_path)
    (tmp_path / "runs" / run / "metrics.jsonl").write_text("")
    again = tercet(*command, cwd=tmp_path)
    assert again.returncode == 1
    assert f"{run}/metrics.jsonl is damaged or missing" in again.stderr


def test_ctrl_c_while_a_run_is_started_is_not_lost(tmp_path):
    """An exception raised in a hook after a fork is printed and dropped: the signal handler must not raise one."""
    script = (
        "import os, signal, sys; from tercet.cli.main import main\n"
        "os.register_at_fork(after_in_parent=lambda: signal.raise_signal(signal.SIGINT))\n"
        "sys.argv[1:] = ['compare', '--epochs', '200']; main()"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=tmp_path, capture_output=True, text=True, timeout=180, check=False
    )
    assert done.returncode == 130
    assert "run the command again to resume" in done.stderr
    assert "rsum" not in done.stderr


def test_ctrl_c_says_that_nothing_is_lost(tmp_path):
    process = subprocess.Popen(
        [sys.executable, "-m", "tercet", "compare", "--epochs", "200"],
        cwd=tmp_path,
        stderr=subprocess.PIPE,
        text=True,
        # A test suite started in the background ignores SIGINT, and its children inherit that.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(6)
    while not (tmp_path / "runs").exists() and process.poll() is None:
        time.sleep(0.1)  # a busy machine starts slowly
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=180)
    assert process.returncode == 130
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
