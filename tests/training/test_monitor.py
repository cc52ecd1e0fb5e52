"""The health monitor logs each problem once, with advice."""

import pytest
import torch

import tercet
from tercet.analysis.cocos import cocos
from tercet.data.dataset import PairedData
from tercet.training.monitor import HealthMonitor, NotFiniteError
from tests.training.small_training import SMALL, run_through, small_data, small_loop
from tests.training.test_step import heads


@pytest.fixture
def logged():
    return []


def check(health, similarity, name="triplet-sh", times=6):
    objective = tercet.objective(name)
    positives = torch.eye(len(similarity), dtype=torch.bool)
    counts = cocos(objective, similarity, positives)
    monitor = objective.monitor(similarity, positives).item()
    for _ in range(times):
        health.check_step(similarity, monitor, sum(similarity.shape), objective.reduction, counts)


@pytest.mark.parametrize("name", ["triplet-sh", "nt-xent"])
def test_a_collapsed_model_is_noticed_once(logged, name):
    check(HealthMonitor(logged.append), torch.full((8, 8), 0.7), name)
    assert len(logged) == 1
    assert logged[0].startswith("collapse: all similarities are equal")
    assert "--warmup-objective triplet" in logged[0]


def test_a_single_unusual_batch_is_not_reported(logged):
    health = HealthMonitor(logged.append)
    check(health, torch.full((8, 8), 0.7), times=4)
    check(health, torch.randn(8, 8), times=1)
    check(health, torch.full((8, 8), 0.7), times=4)
    assert logged == []


def test_an_objective_without_any_gradient(logged):
    check(HealthMonitor(logged.append), torch.eye(8))
    assert logged[0].startswith("no sample contributes")


def test_a_healthy_batch_logs_nothing(logged):
    torch.manual_seed(0)
    check(HealthMonitor(logged.append), torch.randn(8, 8) * 0.1 + 0.5 * torch.eye(8))
    assert logged == []


def test_metrics_at_chance_level_are_reported(logged):
    health = HealthMonitor(logged.append)
    health.check_validation({"t2i_meanr": 48.0}, 100, epoch=0)
    assert logged == []
    health.check_validation({"t2i_meanr": 48.0}, 100, epoch=1)
    assert "mean rank of the positive image is 48 of 100, and random guessing gives 50" in logged[0]
    health.check_validation({"t2i_meanr": 20.0}, 100, epoch=2)
    assert len(logged) == 1


def test_equal_text_under_different_images(logged):
    data = small_data(3)
    texts = ("one", "two", "one", *(f"x{n}" for n in range(12)))
    owners = torch.tensor([0, 0, 1, *[2] * 12])
    HealthMonitor(logged.append).check_data(PairedData("made", data.images, data.captions, owners, texts))
    assert logged[0].startswith("2 captions have the same text as a caption of another image")


@pytest.mark.parametrize(
    ("spoil", "where"),
    [
        (lambda loop: loop.model.caption_head.linear.weight.data.fill_(torch.nan), "the caption embeddings"),
        (lambda loop: loop.model.image_head.linear.weight.data[0].fill_(torch.inf), "the image embeddings"),
    ],
)
def test_not_a_number_stops_the_run_and_is_named(tmp_path, spoil, where):
    data = small_data()
    loop = small_loop(tmp_path, heads(data), data)
    spoil(loop)
    with pytest.raises(NotFiniteError, match=f"NaN or infinity in {where}.*are kept"):
        run_through(loop)


def test_bad_features_are_named_and_the_last_checkpoint_is_good(tmp_path, monkeypatch):
    from tercet.training import train as module

    def broken(self, objective, batch, seed, factor=1.0):
        outcome = step(self, objective, batch, seed, factor)
        self.count = getattr(self, "count", 0) + 1
        if self.count == 4:
            self.model.image_head.linear.weight.grad[0, 0] = torch.nan
        return outcome

    step = module.Step.__call__
    monkeypatch.setattr(module.Step, "__call__", broken)
    with pytest.raises(ValueError, match=r"the gradient of image_head.linear.weight"):
        tercet.train(**SMALL, runs=tmp_path, checkpoint_every=1)
    state = torch.load(max(tmp_path.glob("*/state/*.pt")), weights_only=True)
    assert state["state"]["step"] == 3
    assert all(weight.isfinite().all() for weight in state["model"].values())
