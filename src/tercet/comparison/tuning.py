"""`--tune lr`: every contestant chooses among the same multiples of its learning rate, on validation.

With one seed that is not among those reported, so that no reported run was chosen by its own luck.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tercet import runs
from tercet.comparison.plan import Plan, with_rate, with_seed

TUNING_SEED = 1_000_003


@dataclass(frozen=True)
class Tuned:
    """Validation at each learning rate, and the rate that was chosen."""

    base: float
    """What the factors multiply."""
    validation: Mapping[float, float]
    chosen: float


def trials(plan: Plan, factors: Sequence[float]) -> list[Plan]:
    """One run a learning rate."""
    base = with_seed(plan, TUNING_SEED)
    return [with_rate(base, rate_of(plan, factor)) for factor in factors]


def rate_of(plan: Plan, factor: float) -> float:
    return float(f"{plan.settings.learning_rate * factor:.12g}")  # 3e-3, not 0.0030000000000000001


def choose(plan: Plan, finished: Mapping[float, Path]) -> Tuned | None:
    """The rate whose best epoch was best; of equals the one nearest to the common one. None where no trial finished."""
    usual = plan.settings.learning_rate
    found = {rate: best_validation(folder, plan.settings.select) for rate, folder in finished.items()}
    known = {rate: value for rate, value in found.items() if value is not None}
    if not known:
        return None
    chosen = max(known, key=lambda rate: (known[rate], -abs(rate / usual - 1)))
    return Tuned(usual, known, chosen)


def best_validation(folder: Path, select: str) -> float | None:
    """Of all epochs, by the metric that chooses the weights."""
    epochs = runs.read_validation(folder)
    return max((sum(line[name] for name in select.split("+")) for line in epochs), default=None)
