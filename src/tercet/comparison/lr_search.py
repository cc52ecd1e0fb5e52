"""Learning-rate search (`--tune lr`): every variant tries the same multiples of its learning rate on validation.

It uses one seed that is not reported, so that no reported run was selected by its own result.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tercet import runs
from tercet.comparison.plan import PlannedRun, with_learning_rate, with_seed
from tercet.reporting.table_formats import Cell, Table

TUNING_SEED = 1_000_003


@dataclass(frozen=True)
class LrSearch:
    """Validation metric per learning rate, and the chosen rate."""

    base: float
    """Learning rate that the factors multiply."""
    validation: Mapping[float, float]
    chosen: float


def trials(plan: PlannedRun, factors: Sequence[float]) -> list[PlannedRun]:
    """One run per learning rate."""
    base = with_seed(plan, TUNING_SEED)
    return [with_learning_rate(base, scaled_rate(plan, factor)) for factor in factors]


def scaled_rate(plan: PlannedRun, factor: float) -> float:
    return float(f"{plan.settings.learning_rate * factor:.12g}")  # 3e-3, not 0.0030000000000000001


def choose(plan: PlannedRun, finished: Mapping[float, Path]) -> LrSearch | None:
    """Choose the rate with the best validation epoch; ties go to the one nearest the base. None if no trial finished.

    `finished`: learning rate -> run folder.
    """
    base = plan.settings.learning_rate
    best = {rate: best_validation(folder, plan.settings.select_metric) for rate, folder in finished.items()}
    validation = {rate: value for rate, value in best.items() if value is not None}
    if not validation:
        return None
    chosen = max(validation, key=lambda rate: (validation[rate], -abs(rate / base - 1)))
    return LrSearch(base, validation, chosen)


def best_validation(folder: Path, select_metric: str) -> float | None:
    """Maximum over epochs of the metric that selects the checkpoint."""
    epochs = runs.read_validation(folder)
    return max((sum(line[name] for name in select_metric.split("+")) for line in epochs), default=None)


def lr_search_table(tuned: Mapping[str, LrSearch], factors: Sequence[float]) -> Table:
    """The learning rates that each variant tried, one column per factor."""
    factors = sorted(factors)
    rows = []
    for name, search in tuned.items():
        by_factor = {f"{rate / search.base:.6g}": rate for rate in search.validation}
        rows.append((name, [_lr_cell(search, by_factor.get(f"{factor:.6g}")) for factor in factors]))
    headings = ("objective", *(f"x {factor:g}" for factor in factors))
    return Table("Learning-rate search: rate and validation metric at the best epoch; bold: chosen", headings, rows)


def _lr_cell(search: LrSearch, rate: float | None) -> Cell:
    if rate is None:
        return Cell("failed")
    return Cell(f"{rate:g}: {search.validation[rate]:.1f}", rate == search.chosen)
