"""`tercet fit` from data to an index: in one piece, killed at any moment, with encoders and with a dual encoder."""

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import tercet
from tercet.comparison.settings import CompareSettings
from tercet.fitting import run_fit
from tercet.fitting.budget import Measured
from tercet.storage import sha256_of
from tests.commands import tercet as command
from tests.data.test_splitting import photo
from tests.tiny_models import save_clip

FAST = Measured(image=1e-6, caption=1e-6, heads_step=1e-6)


@pytest.fixture
def a_fast_machine(monkeypatch):
    """The plan does not depend on how busy this machine is."""
    measured = run_fit.measure

    def measure(split, images, texts, whole):
        _, sizes = measured(split, images, texts, whole)
        return FAST._replace(whole_step=None if whole is None else 1e-6), sizes

    monkeypatch.setattr(run_fit, "measure", measure)
    monkeypatch.setattr("tercet.fitting.budget.HEADS_EPOCHS", (2, 2))


@pytest.mark.usefixtures("a_fast_machine")
def test_scenes_in_one_piece_and_again(tmp_path, capsys):
    settings = {"objectives": "nt-xent", "minutes": 0.2, "runs": tmp_path}
    fitted = tercet.fit("scenes:60", **settings)
    output = capsys.readouterr().err
    assert output.index("plan: heads on frozen features; 60 / 20 / 20 images") < output.index("nt-xent")
    (folder,) = tmp_path.glob("fit_scenes_*")
    assert fitted.folder == folder
    result = json.loads((folder / "result.json").read_text())
    assert result["metrics"] == dict(fitted.metrics)
    assert fitted.index is None  # scenes have no image files
    candidates = {run.folder: run.metrics for run in fitted.comparison.results.runs["nt-xent"].values()}
    candidates |= {each.model: each.metrics for each in fitted.comparison.baselines}
    assert fitted.metrics == candidates[fitted.model]
    assert tercet.load(fitted.model).embed_texts(["a red square"]).shape[0] == 1
    written = {file: file.stat().st_mtime_ns for file in tmp_path.rglob("fit.json")}
    again = tercet.fit("scenes:60", **settings)
    assert (again.model, again.metrics) == (fitted.model, fitted.metrics)
    assert {file: file.stat().st_mtime_ns for file in tmp_path.rglob("fit.json")} == written
    assert "nt-xent" in repr(fitted) or "cca" in repr(fitted)


def test_what_is_wrong_is_said_before_any_work(tmp_path):
    for arguments, message in (
        (["scenes:60", "--objectives", "nt-xnet"], "did you mean nt-xent"),
        (["missing.csv"], "missing.csv: no such file or folder"),
        (["missing.csv", "--model", "some/model"], "neither a folder here nor in the local cache"),
        (["missing.csv", "--model", "vsepp"], "--model vsepp: neither a folder of a CLIP or SigLIP"),
    ):
        failed = command("fit", *arguments, "--runs", tmp_path / "runs")
        assert failed.returncode == 2
        assert message in failed.stderr
        assert failed.stderr.count("\n") == 1
    assert not list((tmp_path / "runs").glob("*_s0_*"))
    assert "--minutes must be a number above 0" in command("fit", "scenes:60", "--minutes", "0").stderr
    with pytest.raises(ValueError, match="did you mean minutes"):
        tercet.fit("scenes:60", minute=3)


@pytest.fixture(scope="module")
def photos(tmp_path_factory):
    """40 photos without splits, one of them damaged; and a tiny CLIP."""
    folder = tmp_path_factory.mktemp("photos")
    lines = ["image,caption"]
    for number in range(40):
        photo(number, 48).save(folder / f"{number}.png")
        lines += [f"{number}.png,thing{number} on grass{number}", f"{number}.png,one{number} thing{number}"]
    (folder / "broken.jpg").write_bytes(b"no image")
    (folder / "pairs.csv").write_text("\n".join([*lines, "broken.jpg,not there"]))
    save_clip(folder / "clip", lines)
    return folder


@pytest.mark.slow
@pytest.mark.usefixtures("a_fast_machine")
def test_photos_with_a_dual_encoder_to_a_search_index(photos, tmp_path):
    arguments = ["fit", photos / "pairs.csv", "--model", photos / "clip", "--runs", tmp_path, "--objectives", "nt-xent"]
    failed = command(*arguments, "--minutes", "2")
    assert failed.returncode == 2
    assert "broken.jpg: not an image" in failed.stderr
    assert "--skip-bad leaves them out" in failed.stderr
    done = command(*arguments, "--minutes", "2", "--skip-bad", check=True)
    assert "plan: fine-tuning; 32 / 4 / 4 images" in done.stderr
    assert "untrained" in done.stdout
    (folder,) = tmp_path.glob("fit_pairs_*/result.json")
    assert f"tercet serve {folder.parent / 'index'}" in done.stdout
    hits = json.loads(command("search", folder.parent / "index", "thing3", "--json", check=True).stdout)
    assert len(hits) == 10


@pytest.mark.slow
def test_heads_on_features_of_a_dual_encoder_begin_zero_shot(photos, tmp_path, monkeypatch, a_fast_machine):
    measured = run_fit.measure
    monkeypatch.setattr(run_fit, "measure", lambda *given: (FAST._replace(whole_step=1e6), measured(*given)[1]))
    fitted = tercet.fit(
        photos / "pairs.csv", model=str(photos / "clip"), skip_bad=True, objectives="nt-xent", minutes=2, runs=tmp_path
    )
    assert [each.name for each in fitted.comparison.baselines] == ["untrained", "cca"]
    assert isinstance(fitted.comparison.settings, CompareSettings)
    assert fitted.comparison.settings.train["init_from"].endswith("zero-shot")
    assert fitted.index is not None


FIT = "import sys; from tercet.cli.main import main; main(sys.argv[1:])"


def results_of(root: Path) -> dict[str, object]:
    """What must not depend on interruptions: the plan but for its clock, the splits, the result, all weights."""
    (folder,) = root.glob("fit_*")
    plan = json.loads((folder / "fit.json").read_text())["plan"]
    result = json.loads((folder / "result.json").read_text())
    model = Path(result["model"]).name
    return {
        "plan": {name: value for name, value in plan.items() if name not in ("seconds", "measured")},
        "result": {name: result[name] for name in ("chosen", "metrics", "comparison")} | {"model": model[9:]},
        "weights": {
            file.parent.name[9:]: sha256_of([file]) for file in sorted(root.glob("*_s*_*/weights.safetensors"))
        },
    }


@pytest.mark.slow
def test_killed_at_random_moments_it_ends_with_the_same_result(tmp_path):
    command_line = [
        sys.executable,
        "-c",
        FIT,
        "fit",
        "scenes:60",
        "--minutes",
        "60",
        "--objectives",
        "nt-xent",
        "triplet-sh",
    ]

    def start(root):
        return subprocess.Popen(
            [*command_line, "--runs", root], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, start_new_session=True
        )

    began = time.monotonic()
    whole = start(tmp_path / "whole")
    assert whole.wait(timeout=600) == 0, whole.stderr.read()
    seconds = time.monotonic() - began
    expected, moments = results_of(tmp_path / "whole"), random.Random(0)
    for _ in range(3):
        process = start(tmp_path / "killed")
        try:
            process.wait(timeout=moments.uniform(0.1, 1) * seconds)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    last = start(tmp_path / "killed")
    assert last.wait(timeout=600) == 0, last.stderr.read()
    assert results_of(tmp_path / "killed") == expected
    shutil.rmtree(tmp_path / "whole")
