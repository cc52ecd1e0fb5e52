"""The command line as a user meets it, in processes of its own."""

import json
import subprocess
import sys


def tercet(*arguments, **options):
    command = [sys.executable, "-m", "tercet.cli", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, **options)


def test_help_is_quick_because_nothing_heavy_is_imported():
    program = (
        "import sys, tercet, tercet.cli; sys.argv = ['tercet', '--help']; tercet.cli.main();"
        "from tercet.comparison.settings import CompareSettings;"
        "heavy = {'torch', 'numpy', 'rich', 'tyro'} & set(sys.modules); assert not heavy, heavy"
    )
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    assert "compare" in run.stdout


def test_mistakes_get_one_line_and_exit_code_2(tmp_path):
    for arguments, message in [
        (["compar"], "no such command; known: compare"),
        (["compare", "--objectives", "tripet"], "did you mean 'triplet'"),
        (["compare", "--seeds", "0"], "--seeds must be at least 1"),
        (["compare", "--objectives", "triplet", "triplet"], "more than once"),
        (["compare", "--objectives", "nowhere.py:fn"], "no file 'nowhere.py'"),
    ]:
        run = tercet(*arguments, cwd=tmp_path)
        assert run.returncode == 2, run
        assert message in run.stderr
        assert "Traceback" not in run.stderr
        assert not list(tmp_path.iterdir())


def test_compare_from_end_to_end_then_again_from_its_run_folders(tmp_path):
    """Real scenes, heads, objectives (one of them one's own), evaluation, run folders and the table."""
    (tmp_path / "mine.py").write_text(
        "def pull_only(similarity, positives):\n    return -positives.to(similarity.dtype)\n"
    )
    small = [
        "compare",
        "--objectives",
        "triplet-sh",
        "nt-xent",
        "mine.py:pull_only",
        "--scenes",
        "600",
        "--epochs",
        "2",
    ]
    first = tercet(*small, cwd=tmp_path)
    assert first.returncode == 0, first.stderr
    results = json.loads((tmp_path / "runs" / "comparison.json").read_text())
    assert [len(results[name]) for name in ("triplet-sh", "nt-xent", "mine.py:pull_only")] == [2, 2, 2]
    chance = 100 * 10 / 200
    assert all(seed["t2i_r10"] > 3 * chance for seed in results["nt-xent"])
    assert "nt-xent" in first.stdout
    folders = sorted(path.name for path in (tmp_path / "runs").iterdir() if path.is_dir())
    assert len(folders) == 6
    second = tercet(*small, cwd=tmp_path)
    assert second.stdout == first.stdout
    assert sorted(path.name for path in (tmp_path / "runs").iterdir() if path.is_dir()) == folders
