"""One run: the step injects the pair gradient, the schedule is what it says, and seeds are independent."""

import pytest
import torch

import tercet
from tercet.data import paired
from tercet.data.meetings import paired_meetings
from tercet.data.scenes import scenes
from tercet.training import TrainSettings, train, warm_up_then_cosine


def test_the_schedule_warms_up_and_falls_to_zero():
    factor = warm_up_then_cosine(4, 12)
    assert [factor(step) for step in range(5)] == pytest.approx([0.25, 0.5, 0.75, 1.0, 1.0])
    assert factor(8) == pytest.approx(0.5)
    assert factor(12) == pytest.approx(0.0)


def test_the_same_settings_give_the_same_weights_and_another_seed_others():
    data, o = paired("scenes", scenes("train", 60).as_split()), tercet.objective("nt-xent")
    settings = TrainSettings("nt-xent", epochs=1, batch_size=50)
    first, again = (train(o, data, settings, lambda _: None).state_dict() for _ in range(2))
    other = train(o, data, TrainSettings("nt-xent", seed=1, epochs=1, batch_size=50), lambda _: None).state_dict()
    assert all(torch.equal(first[key], again[key]) for key in first)
    assert not torch.equal(first["image_head.linear.weight"], other["image_head.linear.weight"])


def test_no_epoch_of_one_seed_is_an_epoch_of_another():
    data = paired("scenes", scenes("train", 60).as_split())
    orders = {
        tuple(torch.cat([m.captions for m in paired_meetings(data.owners, 50, seed=seed, epoch=epoch)]).tolist())
        for seed in range(3)
        for epoch in range(3)
    }
    assert len(orders) == 9


def test_injecting_the_gradient_trains_as_autograd_of_the_loss_does():
    """GOAL's validation in small: con/con by its gradient, the hinge by autograd."""
    data = paired("scenes", scenes("train", 60).as_split())
    by_gradient = train(tercet.objective("con/con"), data, TrainSettings("x", epochs=1, batch_size=50), lambda _: None)

    def hinge(similarity, positives):
        hidden = similarity.masked_fill(positives, -1.0)
        hardest = hidden.max(dim=1, keepdim=True).values, hidden.max(dim=0, keepdim=True).values
        return sum(((0.2 + h - similarity).relu() * positives).sum() for h in hardest)

    by_autograd = train(tercet.objective(hinge), data, TrainSettings("x", epochs=1, batch_size=50), lambda _: None)
    torch.testing.assert_close(by_gradient.state_dict(), by_autograd.state_dict())
