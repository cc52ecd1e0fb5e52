"""One run: heads trained by one objective, evaluated on held-out data."""

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch

from tercet.contracts import Matcher, Objective
from tercet.data.batches import Batches
from tercet.data.meetings import batches_per_epoch, paired_meetings
from tercet.data.pairs import PairedData, feature_dims
from tercet.evaluation import evaluate
from tercet.models.heads import Heads, HeadsSettings

ENCODED_AT_ONCE = 1024


@dataclass(frozen=True)
class TrainSettings:
    """What makes a run: two runs with equal settings on equal data are the same run."""

    objective: str
    objective_settings: dict[str, Any] = field(default_factory=dict)
    objective_source: str | None = None
    """Checksum of the file that an own objective comes from: an edited one makes another run."""
    seed: int = 0
    model: str = "heads"
    joint_dim: int = 256
    epochs: int = 6
    batch_size: int = 128
    ignore_equal_text: bool = False
    """A caption that stands word for word under another image too is no negative of that image."""
    learning_rate: float = 2e-3
    """Peak of a one-epoch warm-up and a cosine to 0, the same for every objective and chosen by no result."""


def train(
    objective: Objective, data: PairedData, settings: TrainSettings, after_step: Callable[[float], None]
) -> Heads:
    """Train on `data`; after every step `after_step` hears the monitor, which compares across objectives."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(settings.seed)
        model = Heads(HeadsSettings(*feature_dims(data), joint_dim=settings.joint_dim))
    optimizer = torch.optim.AdamW(model.parameters(), lr=settings.learning_rate)
    per_epoch = batches_per_epoch(data.owners, settings.batch_size)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, warm_up_then_cosine(per_epoch, per_epoch * settings.epochs))
    batches = Batches(data, ignore_equal_text=settings.ignore_equal_text)
    for epoch in range(settings.epochs):
        meetings = paired_meetings(data.owners, settings.batch_size, seed=settings.seed, epoch=epoch)
        for batch in batches.run(meetings):
            similarity = model.similarity(model.encode_images(batch.images), model.encode_captions(batch.captions))
            positives = batch.positives()
            optimizer.zero_grad()
            similarity.backward(objective.pair_gradient(similarity, positives, batch.ignored))
            optimizer.step()
            schedule.step()
            with torch.no_grad():
                after_step(objective.monitor(similarity, positives, batch.ignored).item())
    return model


@torch.no_grad()
def evaluate_model(model: Matcher, data: PairedData) -> dict[str, float]:
    images, captions = (
        torch.cat([encode(*side.take(items)) for items in torch.arange(len(side)).split(ENCODED_AT_ONCE)])
        for side, encode in ((data.images, model.encode_images), (data.captions, model.encode_captions))
    )
    positives = torch.arange(len(data.images))[:, None] == data.owners[None, :]
    return evaluate(model.similarity(images, captions), positives)


def warm_up_then_cosine(warm_up: int, total: int) -> Callable[[int], float]:
    """The learning rate's factor at each step."""

    def factor(step: int) -> float:
        if step < warm_up:
            return (step + 1) / warm_up
        return 0.5 * (1 + math.cos(math.pi * (step - warm_up) / max(1, total - warm_up)))

    return factor
