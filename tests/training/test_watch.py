"""The watchful loop says what goes wrong, once, and what to try."""

import pytest
import torch

import tercet
from tercet.analysis.cocos import cocos
from tercet.data.pairs import PairedData
from tercet.training.watch import NotFiniteError, Watch
from tests.training.small import SMALL, run_through, small_data, small_loop
from tests.training.test_step import heads


@pytest.fixture
def said():
    return []


def look(watch, similarity, name="triplet-sh", times=6):
    objective = tercet.objective(name)
    positives = torch.eye(len(similarity), dtype=torch.bool)
    counts = cocos(objective, similarity, positives)
    monitor = objective.monitor(similarity, positives).item()
    for _ in range(times):
        watch.step(similarity, monitor, sum(similarity.shape), objective.reduction, counts)


@pytest.mark.parametrize("name", ["triplet-sh", "nt-xent"])
def test_a_collapsed_model_is_noticed_once(said, name):
    look(Watch(said.append), torch.full((8, 8), 0.7), name)
    assert len(said) == 1
    assert said[0].startswith("collapse: all similarities are equal")
    assert "--first-objective triplet" in said[0]


def test_a_single_odd_batch_is_no_news(said):
    watch = Watch(said.append)
    look(watch, torch.full((8, 8), 0.7), times=4)
    look(watch, torch.randn(8, 8), times=1)
    look(watch, torch.full((8, 8), 0.7), times=4)
    assert said == []


def test_an_objective_with_nothing_left_to_teach(said):
    look(Watch(said.append), torch.eye(8))
    assert said[0].startswith("no sample contributes")


def test_a_healthy_batch_is_passed_in_silence(said):
    torch.manual_seed(0)
    look(Watch(said.append), torch.randn(8, 8) * 0.1 + 0.5 * torch.eye(8))
    assert said == []


def test_learning_that_does_not_leave_chance(said):
    watch = Watch(said.append)
    watch.validation({"t2i_meanr": 48.0}, 100, epoch=0)
    assert said == []
    watch.validation({"t2i_meanr": 48.0}, 100, epoch=1)
    assert "mean rank of the right image is 48 of 100, and guessing gives 50" in said[0]
    watch.validation({"t2i_meanr": 20.0}, 100, epoch=2)
    assert len(said) == 1


def test_equal_text_under_different_images(said):
    data = small_data(3)
    texts = ("one", "two", "one", *(f"x{n}" for n in range(12)))
    owners = torch.tensor([0, 0, 1, *[2] * 12])
    Watch(said.append).data(PairedData("made", data.images, data.captions, owners, texts))
    assert said[0].startswith("2 captions stand word for word under more than one image")


@pytest.mark.parametrize(
    ("spoil", "where"),
    [
        (lambda loop: loop.model.caption_head.linear.weight.data.fill_(torch.nan), "embedded captions"),
        (lambda loop: loop.model.image_head.linear.weight.data[0].fill_(torch.inf), "embedded images"),
    ],
)
def test_not_a_number_stops_the_run_and_is_named(tmp_path, spoil, where):
    data = small_data()
    loop = small_loop(tmp_path, heads(data), data)
    spoil(loop)
    with pytest.raises(NotFiniteError, match=f"NaN or infinity in {where}.*are kept"):
        run_through(loop)


def test_bad_features_are_named_and_the_last_checkpoint_is_good(tmp_path, monkeypatch):
    from tercet.training import loop as module

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
    assert state["place"]["step"] == 3
    assert all(weight.isfinite().all() for weight in state["model"].values())
