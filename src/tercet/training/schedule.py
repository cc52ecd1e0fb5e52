"""The learning rate's factor at each step."""

import math
from collections.abc import Callable

from tercet.training.settings import TrainSettings

Factor = Callable[[int], float]


def schedule(settings: TrainSettings, steps_an_epoch: int) -> Factor:
    """By name; all of them rise over the warm-up first."""
    warm_up = round(settings.warm_up_epochs * steps_an_epoch)
    total = settings.epochs * steps_an_epoch
    after: dict[str, Factor] = {
        "cosine": lambda step: 0.5 * (1 + math.cos(math.pi * min(1.0, (step - warm_up) / max(1, total - warm_up)))),
        "linear": lambda step: max(0.0, 1 - (step - warm_up) / max(1, total - warm_up)),
        "steps": lambda step: settings.decay ** sum(step >= epoch * steps_an_epoch for epoch in settings.decay_epochs),
        "constant": lambda step: 1.0,
    }
    later = after[settings.schedule]
    return lambda step: (step + 1) / warm_up if step < warm_up else later(step)


def ramp(settings: TrainSettings, epoch: int, position: int, steps_an_epoch: int) -> float:
    """The factor on the gradient itself: below 1 in the one epoch in which a thawed backbone warms up."""
    return position / steps_an_epoch if epoch == settings.ramp_epoch else 1.0
