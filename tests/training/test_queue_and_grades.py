"""A queue, its moving average, and weights of pairs in training: what they hold, what is refused, kill and resume."""

import json
import random
import shutil
import signal
import subprocess
import sys
import time

import numpy as np
import pytest
import torch

import tercet
from tercet import runs
from tercet.data.collate import Collator
from tercet.data.grades import read_grades
from tercet.data.samplers import BatchIndices
from tercet.models import build
from tercet.training.moving_average import MovingAverage
from tercet.training.prepare import prepare_data, run_id_of
from tercet.training.settings import train_settings
from tercet.training.stacked import stack_key
from tests.training.small_training import SMALL, small_data, small_loop
from tests.training.test_train import assert_same_run, only_run


def heads(data):
    torch.manual_seed(0)
    return build("heads", image_dim=data.images.shape[1], caption_dim=data.captions.shape[1], embed_dim=8)


def make_steps(loop, count):
    for number, work in enumerate(loop.steps(loop.batches)):
        if number == count:
            break
        loop.train_step(work)
        yield work.batches[0][0]


def test_the_queue_holds_the_last_items_as_they_were_encoded(tmp_path):
    data = small_data()
    loop = small_loop(tmp_path, heads(data), data, objective="nt-xent", queue_size=120, epochs=3)
    before = loop.model.encode_images(torch.zeros(1, data.images.shape[1]))
    batches = list(make_steps(loop, 2))
    assert len(loop.queue) == 100
    assert not torch.equal(before, loop.model.encode_images(torch.zeros(1, data.images.shape[1])))
    ids = loop.queue.state_dict()["captions"]["ids"][:100]
    assert torch.equal(ids, torch.cat([batch.caption_ids for batch in batches]))


def test_the_moving_average_encodes_the_entries(tmp_path):
    data, momentum = small_data(), 0.75
    loop = small_loop(tmp_path, heads(data), data, objective="nt-xent", queue_size=60, queue_momentum=momentum)
    average = {name: tensor.clone() for name, tensor in loop.model.state_dict().items()}
    batch = None
    for batch in make_steps(loop, 3):  # noqa: B007 - the last one is used
        for name, tensor in loop.model.state_dict().items():
            average[name] = momentum * average[name] + (1 - momentum) * tensor
    for name, tensor in loop.average.model.state_dict().items():
        torch.testing.assert_close(tensor, average[name])
    state = loop.queue.state_dict()["images"]
    held = state["embeddings"][(torch.arange(len(batch.images)) + state["end"] - len(batch.images)) % 60]
    torch.testing.assert_close(held, loop.average.model.encode_images(batch.images))
    assert not any(parameter.requires_grad for parameter in loop.average.model.parameters())


def test_counts_of_a_run_include_the_queue(tmp_path):
    given = SMALL | {"cocos_every": 1, "objective": "nt-xent", "objective_settings": {"temperature": 100.0}}
    counts = [
        [line["cocos"]["i2t"]["negatives"] for line in runs.read_lines(run.folder) if "cocos" in line]
        for run in (tercet.train(**given, queue_size=200, runs=tmp_path), tercet.train(**given, runs=tmp_path))
    ]
    assert counts[0][0] == counts[1][0] <= 49
    assert all(with_queue > without + 40 for with_queue, without in zip(counts[0][1:], counts[1][1:], strict=True))


def test_grades_of_a_file_reach_the_batch(tmp_path):
    data = small_data(6)
    (tmp_path / "grades.txt").write_text("image,caption,weight\n0, 7, 0.5\n0 1 0.25\n\n3,2,1\n")
    table = read_grades(tmp_path / "grades.txt", data.split)
    captions = torch.tensor([1, 7, 2, 0])
    batch = Collator(data, grades=table).make(BatchIndices(torch.tensor([0, 3, 1]), captions, 0))
    expected = (torch.tensor([0, 3, 1])[:, None] == data.owners[captions]).float()
    expected[0, 0], expected[0, 1], expected[1, 2] = 0.25, 0.5, 1.0
    assert torch.equal(batch.weighted_positives(), expected)
    assert torch.equal(batch.positives(), expected > 0)


def test_human_judgments_are_grades(tmp_path):
    split = small_data(4).split
    first, second = split.image_names[:2]
    (tmp_path / "ExpertAnnotations.txt").write_text(f"{first}\t{second}#1\t2\t2\t4\n")
    (tmp_path / "CrowdFlowerAnnotations.txt").write_text(
        f"{first}\t{second}#0\t0.667\t2\t1\n{first}\t{second}#1\t0\t0\t3\n{second}\tother.jpg#0\t1\t3\t0\n"
    )
    starts = np.searchsorted(split.owners, np.arange(2))
    images, captions = torch.tensor([0, 1]), torch.tensor([starts[0], starts[1], starts[1] + 1])
    weights = read_grades(tmp_path, split).of(
        images, captions, images[:, None] == torch.from_numpy(split.owners)[captions]
    )
    torch.testing.assert_close(weights, torch.tensor([[1.0, 2 / 3, 5 / 9], [0.0, 1.0, 1.0]]))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("0 1\n", "line 1: expected an image index, a caption index and a weight"),
        ("0 1 0.5\n0 1 0.6\n", "line 2: image 0 and caption 1 have two weights"),
        ("0 1 1.5\n", r"line 1: .* weight in 0\.\.1"),
        ("900 1 0.5\n", "no image below 90"),
        ("", "no graded pairs"),
    ],
)
def test_a_wrong_file_of_grades_is_one_line(tmp_path, text, message):
    (tmp_path / "grades.txt").write_text(text)
    with pytest.raises(ValueError, match=message):
        tercet.train(**SMALL, objective="nt-xent", grades=str(tmp_path / "grades.txt"), runs=tmp_path)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"queue_size": 0}, "--queue-size must be a whole number of at least 1"),
        ({"queue_momentum": 0.9}, "--queue-momentum needs --queue-size"),
        ({"queue_size": 9, "queue_momentum": 1.0}, "--queue-momentum must be at least 0 and below 1"),
        ({"queue_size": 9, "positives": "diagonal"}, "--queue-size needs --positives ids"),
        ({"queue_size": 9, "ignore_equal_text": True}, "--queue-size cannot be combined with --ignore-equal-text"),
        ({"queue_size": 9, "grades": "none.txt"}, "--queue-size cannot be combined with --grades"),
        ({"grades": "none.txt", "positives": "diagonal"}, "--grades needs --positives ids"),
        ({"grades": "none.txt", "objective": "cir/sig-ms"}, "--grades: cir/sig-ms does not define weights.*nt-xent"),
        ({"grades": "none.txt", "objective": "nt-xent"}, "none.txt: cannot be read"),
        ({"model": "clip", "objective": "nt-xent", "objective_settings": {"learn": "temperature"}}, "a learned scale"),
    ],
)
def test_what_cannot_be_combined_is_refused_before_any_work(tmp_path, given, message):
    with pytest.raises(ValueError, match=message):
        tercet.train(**SMALL | given, runs=tmp_path)
    assert not [folder for folder in tmp_path.iterdir() if folder.is_dir()]


def test_a_model_without_dot_products_has_no_queue(tmp_path):
    given = {"data": "scenes:60", "features": "regions", "model": "scan", "epochs": 1, "queue_size": 9}
    with pytest.raises(ValueError, match="--queue-size is for dual encoders"):
        tercet.train(**given, runs=tmp_path)


def test_the_content_of_grades_is_part_of_the_run(tmp_path):
    ids = set()
    for name, text in (("a.txt", "0 7 0.5\n"), ("b.txt", "0 7 0.5\n"), ("c.txt", "0 7 0.6\n")):
        (tmp_path / name).write_text(text)
        settings = train_settings(SMALL | {"objective": "nt-xent", "grades": str(tmp_path / name)})
        prepared = prepare_data(settings)
        ids.add(run_id_of(settings, prepared))
        assert stack_key(settings, prepared) is None
    assert len(ids) == 2


@pytest.mark.parametrize(
    "given",
    [
        {"queue_size": 9},
        {"objective": "nt-xent:learn=temperature"},
        {"objective": "triplet + nt-xent:learn=temperature"},
    ],
)
def test_runs_with_state_of_their_own_are_trained_alone(given):
    settings = train_settings(SMALL | given)
    assert stack_key(settings, prepare_data(settings)) is None
    plain = train_settings(SMALL | {"objective": "triplet + 0.1*nt-xent"})
    assert stack_key(plain, prepare_data(plain)) is not None


@pytest.mark.slow
@pytest.mark.parametrize("kills", [3])
def test_a_killed_run_with_a_queue_resumes_with_the_same_weights(tmp_path, kills):
    command = [sys.executable, "-m", "tercet", "train", "scenes:300", "--epochs", "4", "--checkpoint-every", "1"]
    command += ["--objective", "nt-xent:learn=temperature + 0.1*triplet:reduction=mean"]
    command += ["--queue-size", "100", "--queue-momentum", "0.9", "--runs"]
    subprocess.run([*command, str(tmp_path / "whole")], check=True, capture_output=True)
    chance, killed = random.Random(0), tmp_path / "killed"
    for _ in range(kills):
        before = {path.name for path in killed.glob("*/state/*.json")}
        process = subprocess.Popen([*command, str(killed)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        while process.poll() is None and not {path.name for path in killed.glob("*/state/*.json")} - before:
            time.sleep(0.002)
        time.sleep(chance.uniform(0.0, 0.05))
        process.send_signal(signal.SIGKILL)
        process.communicate()
        if list(killed.glob("*/machine.json")):  # it finished
            shutil.rmtree(killed)
    subprocess.run([*command, str(killed)], check=True, capture_output=True)
    assert_same_run(only_run(tmp_path / "whole"), only_run(killed))
    lines = runs.read_lines(only_run(killed))
    assert any("nt-xent:temperature" in json.dumps(line) for line in lines)


def test_a_function_from_python_is_no_term_of_a_run(tmp_path):
    def pull(S, positives):
        return -positives.to(S.dtype)

    both = tercet.objective("nt-xent") + 0.5 * tercet.objective(pull)
    with pytest.raises(ValueError, match="the function pull from Python cannot be a term of a sum in a run"):
        tercet.train("scenes:40", objective=both, runs=tmp_path)
    with pytest.raises(ValueError, match="the function pull from Python cannot be a term of a sum in a run"):
        tercet.compare("scenes:40", objectives=["nt-xent", both], runs=tmp_path)


def test_the_moving_average_of_a_tied_parameter_moves_once(without_shape_checks):
    model = torch.nn.Linear(2, 2)
    model.tied = model.weight
    average = MovingAverage(model, momentum=0.75)
    before = average.model.weight.clone()
    torch.nn.init.ones_(model.weight)
    average.update(model)
    torch.testing.assert_close(average.model.weight, before + 0.25 * (1 - before))
