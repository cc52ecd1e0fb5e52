"""`tercet evaluate`: runs and saved models on a split, ensembles, protocols, what is written, what is refused."""

import json
import shutil
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest
import torch

import tercet
from tercet.data.formats import open_data
from tercet.models import build
from tercet.retriever import Reading, Retriever, load
from tercet.training.evaluate_settings import EvaluateSettings
from tercet.training.evaluating import as_read_by, coco_ids, evaluate_models
from tercet.training.validation import encoded
from tests.training.small import SMALL


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs")
    return [tercet.train(**SMALL | {"seed": seed}, runs=folder) for seed in (0, 1)]


def evaluated(tmp_path, *folders, **given):
    given = {"data": "scenes:90", "out": tmp_path, **given}
    return evaluate_models(EvaluateSettings(tuple(folders), **given))


def test_a_run_evaluates_to_what_it_found_itself(tmp_path, runs):
    found = evaluated(tmp_path, runs[0].folder)
    assert found.found.metrics == pytest.approx(runs[0].metrics, abs=1e-9)
    content = json.loads(found.file.read_text())
    assert content["metrics"]["rsum"] == found.found.metrics["rsum"]
    assert content["models"] == [runs[0].folder.name]
    assert {"protocol", "ties", "checksums", "machine", "split"} <= set(content)
    with np.load(found.file.parent / "ranks.npz") as here, np.load(runs[0].folder / "ranks.npz") as there:
        assert all(np.array_equal(here[name], there[name]) for name in there.files)


def test_an_ensemble_is_the_mean_of_similarities(tmp_path, runs):
    split = open_data("scenes:90").split("test")
    total = 0
    for run in runs:
        model = load(run.folder)
        images, captions = encoded(model, as_read_by(model, "scenes", split))
        total = total + images @ captions.T
    positives = torch.arange(len(split.image_names))[:, None] == torch.from_numpy(split.owners)
    expected = tercet.evaluate(total / 2, positives)
    assert evaluated(tmp_path, *(run.folder for run in runs)).found.metrics == pytest.approx(expected)


@pytest.mark.usefixtures("without_shape_checks")
@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"protocol": "flickr-1k"}, "flickr-1k wants exactly 1,000 images, found 30"),
        ({"split": "tset"}, "did you mean test"),
        ({"data": "nowhere"}, "no such file or folder"),
    ],
)
def test_what_does_not_fit_is_refused(tmp_path, runs, given, message):
    with pytest.raises(ValueError, match=message):
        evaluated(tmp_path, runs[0].folder, **given)


def test_features_of_another_width_are_named():
    model = Retriever("heads", build("heads", image_dim=8, caption_dim=256), Reading())
    with pytest.raises(ValueError, match="scenes has image features of 256 channels, the model was trained on 8"):
        as_read_by(model, "scenes", open_data("scenes:90").split("test"))
    wordless = Retriever("vsepp", build("vsepp", image_dim=256, words=9), Reading())
    with pytest.raises(ValueError, match="came without its vocabulary"):
        as_read_by(wordless, "scenes", open_data("scenes:90").split("test"))


def test_ids_of_coco_are_the_numbers_at_the_end_of_names():
    split = open_data("scenes:90").split("test")
    assert coco_ids(split) is None  # rows are no ids
    named = replace(split, image_names=tuple(f"COCO_val2014_{7 * n + 5:012d}.jpg" for n in range(30)))
    assert coco_ids(named).tolist() == [7 * n + 5 for n in range(30)]


def test_models_of_one_name_and_other_weights_do_not_share_a_folder(tmp_path, runs):
    for place, run in zip("ab", runs, strict=True):
        shutil.copytree(run.folder, tmp_path / place / "model")
    files = {evaluated(tmp_path / "out", tmp_path / place / "model").file for place in "ab"}
    assert len(files) == 2


def test_the_command_prints_a_table_and_says_where_all_of_it_is(tmp_path, runs):
    command = [sys.executable, "-m", "tercet.cli", "evaluate", str(runs[0].folder), "--data", "scenes:90"]
    done = subprocess.run([*command, "--explain-legacy"], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "image to text" in done.stdout
    assert "all the original scripts on a single fold" in done.stdout
    refused = subprocess.run([*command, "--protocol", "coco-5k"], cwd=tmp_path, capture_output=True, text=True)
    assert refused.returncode == 2
    assert refused.stderr.startswith("tercet evaluate: protocol coco-5k wants exactly 5,000 images")
    missing = subprocess.run([*command[:4], "nothing", *command[5:]], cwd=tmp_path, capture_output=True, text=True)
    assert missing.returncode == 2
    assert "no saved model there" in missing.stderr
