"""What fits into a budget of time: images, objectives, seeds and epochs, from the time that one step takes.

Pure: `make_plan` has no clock. Features of all images are extracted first; if that alone takes too long, every split is
reduced alike. What is left goes to training: the first of `LEVELS` that fits, else the last.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import ceil
from typing import Any, NamedTuple

FEATURES, WHOLE = "heads on frozen features", "fine-tuning"
ENCODING_SHARE = 0.6  # of the budget, at most: for features and the index
TRAINING_SHARE = 0.8  # of what is left; evaluation, tables and the report take the rest
MIN_IMAGES = 20  # per split that is reduced
TUNING_EPOCHS = 5 / 6 + 2 / 2  # that tuning of a rate takes, in units of a run: screening and finals
RUN_SECONDS = 2.0  # that a run takes besides its steps
RUNS_OF_TUNING = 7
HEADS_STEPS, HEADS_EPOCHS = 1000, (12, 30)  # steps of a run, as far as the number of epochs stays in this range
MAX_BATCH = {FEATURES: 128, WHOLE: 32}


class Measured(NamedTuple):
    """Seconds on this machine."""

    image: float
    """To encode one."""
    caption: float
    heads_step: float
    """One step of training of heads, a whole batch."""
    whole_step: float | None = None
    """One step of fine-tuning; None if there is no model to fine-tune."""


class Level(NamedTuple):
    objectives: int | None
    """Number of the first ones; None for all."""
    tuned: bool
    seeds: int
    shortened: float = 1.0
    """Factor on the epochs."""


LEVELS = (
    Level(None, tuned=True, seeds=3),
    Level(None, tuned=True, seeds=1),
    Level(None, tuned=False, seeds=1),
    Level(1, tuned=True, seeds=1),
    Level(1, tuned=False, seeds=1),
    Level(1, tuned=False, seeds=1, shortened=0.4),
)


@dataclass(frozen=True)
class Plan:
    """Everything that is decided before the work: saved, and resumed unchanged."""

    minutes: float
    mode: str
    images: Mapping[str, int]
    """Split -> number of images that are used."""
    whole: Mapping[str, int]
    """Split -> number of images of the data."""
    objectives: Sequence[str]
    tuned: bool
    seeds: int
    epochs: int
    batch_size: int
    seconds: Mapping[str, float]
    """Stage -> estimate."""
    measured: Mapping[str, float | None]

    @property
    def reduced(self) -> bool:
        return dict(self.images) != dict(self.whole)

    def lines(self) -> list[str]:
        """The plan in words."""
        used = " / ".join(f"{count:,}" for count in self.images.values())
        of_all = f" of {sum(self.whole.values()):,}, which would take too long" if self.reduced else ""
        rate = "a tuned learning rate each" if self.tuned else "one learning rate, not tuned"
        seeds = "1 seed" if self.seeds == 1 else f"{self.seeds} seeds"
        times = ", ".join(f"{stage} {_duration(seconds)}" for stage, seconds in self.seconds.items())
        return [
            f"{self.mode}; {used} images of {' / '.join(self.images)}{of_all}",
            f"{', '.join(self.objectives)}; {rate}, {seeds}, {self.epochs} epochs of batches of {self.batch_size}",
            f"estimated: {times}; budget {self.minutes:g} minutes",
        ]

    def document(self) -> dict[str, Any]:
        """For JSON."""
        return {name: dict(value) if isinstance(value, Mapping) else value for name, value in vars(self).items()}


def make_plan(
    minutes: float,
    measured: Measured,
    images: Mapping[str, int],
    captions: Mapping[str, int],
    objectives: Sequence[str],
    *,
    encodes: bool,
    indexes: bool,
) -> Plan:
    """The plan that fits into the budget. `encodes`: features have to be extracted; `indexes`: an index is made."""
    budget = 60 * minutes
    per_image = measured.image if encodes or indexes else 0.0  # once: the index reads features that are on disk
    per_caption = measured.caption if encodes else 0.0
    full = per_image * sum(images.values()) + per_caption * sum(captions.values())
    share = min(1.0, ENCODING_SHARE * budget / full) if full else 1.0
    used = {
        name: count if share == 1 else min(count, max(MIN_IMAGES, int(share * count))) for name, count in images.items()
    }
    kept = {name: max(1, round(captions[name] * used[name] / max(1, images[name]))) for name in images}
    features = measured.image * sum(used.values()) + per_caption * sum(kept.values()) if encodes else 0.0
    index = measured.image * sum(used.values()) if indexes else 0.0
    if measured.whole_step is not None:
        left = TRAINING_SHARE * (budget - index)
        found = _training(WHOLE, kept["train"], objectives, measured.whole_step, left)
        if found[1] <= left:
            return _plan(minutes, WHOLE, used, images, found, {"index": index}, measured)
    left = TRAINING_SHARE * (budget - features)
    found = _training(FEATURES, kept["train"], objectives, measured.heads_step, left)
    return _plan(minutes, FEATURES, used, images, found, {"features": features}, measured)


def _training(
    mode: str, captions: int, objectives: Sequence[str], step: float, left: float
) -> tuple[dict[str, Any], float]:
    """The settings of the first level that takes at most `left` seconds, else of the last; and what it takes."""
    batch_size = min(MAX_BATCH[mode], max(2, captions // 8))
    steps = max(1, captions // batch_size)
    whole_epochs = 3 if mode == WHOLE else min(max(ceil(HEADS_STEPS / steps), HEADS_EPOCHS[0]), HEADS_EPOCHS[1])
    for level in LEVELS:
        chosen = list(objectives[: level.objectives])
        epochs = max(1, round(level.shortened * whole_epochs))
        runs = len(chosen) * (level.seeds + (RUNS_OF_TUNING if level.tuned else 0))
        run_units = len(chosen) * (level.seeds + (TUNING_EPOCHS if level.tuned else 0))
        seconds = run_units * epochs * steps * step + runs * RUN_SECONDS
        if seconds <= left:
            break
    settings = {"objectives": chosen, "tuned": level.tuned, "seeds": level.seeds, "epochs": epochs}
    return settings | {"batch_size": batch_size}, seconds


def _plan(
    minutes: float,
    mode: str,
    used: Mapping[str, int],
    whole: Mapping[str, int],
    training: tuple[dict[str, Any], float],
    stages: Mapping[str, float],
    measured: Measured,
) -> Plan:
    settings, seconds = training
    estimates = {name: round(value, 1) for name, value in {**stages, "training": seconds}.items() if value}
    return Plan(minutes, mode, dict(used), dict(whole), seconds=estimates, measured=measured._asdict(), **settings)


def _duration(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 100 else f"{seconds / 60:.0f} minutes"
