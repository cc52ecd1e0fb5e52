"""`tercet evaluate`: runs and saved models on a split, ensembles, protocols, output files, errors."""

import json
import shutil
from dataclasses import replace

import numpy as np
import pytest
import torch

import tercet
from tercet.data.formats import open_data
from tercet.inference import Preprocessor, Retriever, load
from tercet.models import build
from tercet.training.eval_loop import encode_split
from tercet.training.evaluate_run import coco_ids, evaluate_models, preprocess_split
from tercet.training.settings import EvaluateSettings
from tests.commands import tercet as tercet_
from tests.training.small_training import SMALL


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs")
    return [tercet.train(**SMALL | {"seed": seed}, runs=folder) for seed in (0, 1)]


def evaluate(tmp_path, *folders, **given):
    given = {"data": "scenes:90", "out": tmp_path, **given}
    return evaluate_models(EvaluateSettings(tuple(folders), **given))


def test_evaluating_a_run_gives_its_own_metrics(tmp_path, runs):
    result = evaluate(tmp_path, runs[0].folder)
    assert result.evaluation.metrics == pytest.approx(runs[0].metrics, abs=1e-9)
    content = json.loads(result.file.read_text())
    assert content["metrics"]["rsum"] == result.evaluation.metrics["rsum"]
    assert content["models"] == [runs[0].folder.name]
    assert {"protocol", "ties", "checksums", "machine", "split"} <= set(content)
    with np.load(result.file.parent / "ranks.npz") as here, np.load(runs[0].folder / "ranks.npz") as there:
        assert all(np.array_equal(here[name], there[name]) for name in there.files)


def test_an_ensemble_is_the_mean_of_similarities(tmp_path, runs):
    split = open_data("scenes:90").split("test")
    total = 0
    for run in runs:
        model = load(run.folder)
        images, captions = encode_split(model.model, preprocess_split(model, "scenes", split))
        total = total + images @ captions.T
    positives = torch.arange(len(split.image_names))[:, None] == torch.from_numpy(split.owners)
    expected = tercet.evaluate(total / 2, positives)
    assert evaluate(tmp_path, *(run.folder for run in runs)).evaluation.metrics == pytest.approx(expected)


@pytest.mark.usefixtures("without_shape_checks")
@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"protocol": "flickr-1k"}, "flickr-1k expects exactly 1,000 images, found 30"),
        ({"split": "tset"}, "did you mean test"),
        ({"data": "nowhere"}, "no such file or folder"),
    ],
)
def test_invalid_settings_are_refused(tmp_path, runs, given, message):
    with pytest.raises(ValueError, match=message):
        evaluate(tmp_path, runs[0].folder, **given)


def test_features_of_another_width_are_refused():
    model = Retriever("heads", build("heads", image_dim=8, caption_dim=256), Preprocessor())
    with pytest.raises(ValueError, match="scenes has image features of 256 channels, the model was trained on 8"):
        preprocess_split(model, "scenes", open_data("scenes:90").split("test"))
    without_vocabulary = Retriever("vsepp", build("vsepp", image_dim=256, vocab_size=9), Preprocessor())
    with pytest.raises(ValueError, match="this vsepp has no vocabulary"):
        preprocess_split(without_vocabulary, "scenes", open_data("scenes:90").split("test"))


def test_coco_ids_are_parsed_from_image_names():
    split = open_data("scenes:90").split("test")
    assert coco_ids(split) is None  # rows are no ids
    named = replace(split, image_names=tuple(f"COCO_val2014_{7 * n + 5:012d}.jpg" for n in range(30)))
    assert coco_ids(named).tolist() == [7 * n + 5 for n in range(30)]


def test_models_of_equal_name_with_other_weights_do_not_share_a_folder(tmp_path, runs):
    for parent, run in zip("ab", runs, strict=True):
        shutil.copytree(run.folder, tmp_path / parent / "model")
    files = {evaluate(tmp_path / "out", tmp_path / parent / "model").file for parent in "ab"}
    assert len(files) == 2


def test_the_command_prints_a_table_and_the_output_file(tmp_path, runs):
    command = ["evaluate", runs[0].folder, "--data", "scenes:90"]
    done = tercet_(*command, "--explain-legacy", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "image to text" in done.stdout
    assert "all the original scripts on a single fold" in done.stdout
    refused = tercet_(*command, "--protocol", "coco-5k", cwd=tmp_path)
    assert refused.returncode == 2
    assert refused.stderr.startswith("tercet evaluate: protocol coco-5k expects exactly 5,000 images")
    missing = tercet_("evaluate", "nothing", "--data", "scenes:90", cwd=tmp_path)
    assert missing.returncode == 2
    assert "not a saved model" in missing.stderr
