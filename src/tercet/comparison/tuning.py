"""Tuning before a comparison: every variant gets the same budget, on validation, with seeds that are not reported.

The learning rate is tuned by successive halving. Screening: short runs at the starting rates, then two more, each next
to the best so far: beyond it while an end of the range wins, else between it and its better neighbor. Final: two rates
again, with three times the epochs and another seed; the better one is used. A short run has the whole schedule,
shortened. The two are the best, unless several are nearly as good: short runs favor high rates, with which a reported
run would overfit, so they are then the lowest of these and the next lower one.

`--tune full` continues with the objective's own constant (temperature, tau or margin) in the same way, and then the
number of epochs. Trials have no test split: they are never evaluated on it.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from tercet import runs
from tercet.comparison.plan import PlannedRun, PreparedDatasets, with_learning_rate, with_seed
from tercet.comparison.settings import CompareSettings
from tercet.objectives import objective
from tercet.objectives.aoq import AOQ
from tercet.objectives.goal.cells import Goal
from tercet.objectives.hardest_triplet import HardestTriplet
from tercet.objectives.nt_xent import NTXent
from tercet.objectives.sigmoid import Sigmoid
from tercet.objectives.smooth_ap import SmoothAP
from tercet.objectives.triplet import Triplet
from tercet.reporting.output_formats import Cell, Table
from tercet.training.settings import TrainSettings

SCREENING_SEED, FINAL_SEED = 1_000_003, 1_000_004
ADDED_VALUES = 2  # that screening adds to the starting ones
FINALISTS = 2
SCREENING_SHARE, FINAL_SHARE = 1 / 6, 1 / 2  # of the epochs of a reported run
NEARLY = 0.98  # of the best validation metric
CONSTANT_FACTORS = EPOCH_FACTORS = (0.5, 1.0, 2.0)

Values = Mapping[float, float]
"""Value of a setting -> validation metric at the best epoch."""


@dataclass(frozen=True)
class Search:
    """What was tried for one setting of one variant, and what is used."""

    setting: str
    base: float
    """Without tuning it would have been this."""
    screening: Values
    final: Values
    """Longer runs of the best."""
    chosen: float

    @property
    def at_end(self) -> bool:
        """Whether the range was not wide enough: the best value is the lowest or the highest that was tried."""
        return len(self.screening) > 1 and self.chosen in (min(self.screening), max(self.screening))

    def document(self) -> dict[str, Any]:
        """For JSON; None for trials that failed."""
        values = {
            rung: {f"{value:g}": metric if math.isfinite(metric) else None for value, metric in tried.items()}
            for rung, tried in (("screening", self.screening), ("final", self.final))
        }
        return {"setting": self.setting, "base": self.base, "chosen": self.chosen, "at_end": self.at_end, **values}


Trials = Callable[[Sequence[PlannedRun]], Mapping[str, Path]]
"""Executes trials; returns label -> run folder of those that finished."""


def check_tuning(settings: CompareSettings, prepared_datasets: PreparedDatasets) -> str | None:
    """Why learning rates cannot be tuned, or None if they can."""
    if settings.seeds > SCREENING_SEED:
        raise ValueError(f"--seeds must be at most {SCREENING_SEED}: tuning uses that seed, got {settings.seeds}")
    if any(prepared.validation is None for prepared in prepared_datasets.values()):
        return "the data has no validation split"
    return None


def without_test(prepared_datasets: PreparedDatasets) -> PreparedDatasets:
    return {model: replace(prepared, test=None) for model, prepared in prepared_datasets.items()}


def tune(plans: Mapping[str, PlannedRun], settings: CompareSettings, execute: Trials) -> dict[str, list[Search]]:
    """Searches of every variant, one per setting; none for a variant whose trials all failed."""
    current = dict(plans)
    searches: dict[str, list[Search]] = {name: [] for name in plans}

    def search(setting: Callable[[PlannedRun], str | None], factors: Sequence[float]) -> None:
        tuned = {name: which for name, plan in current.items() if (which := setting(plan)) is not None}
        found = _search({name: (current[name], which) for name, which in tuned.items()}, factors, execute)
        for name, result in found.items():
            searches[name].append(result)
            current[name] = with_value(current[name], result.setting, result.chosen)

    search(lambda plan: "learning_rate", settings.tune_factors)
    if settings.tune == "full":
        search(own_constant, CONSTANT_FACTORS)
        search(lambda plan: "epochs", EPOCH_FACTORS)
    return searches


def _search(
    plans: Mapping[str, tuple[PlannedRun, str]], factors: Sequence[float], execute: Trials
) -> dict[str, Search]:
    """One setting of every variant; trials of all variants are executed together."""
    screened: dict[str, dict[float, float]] = {name: {} for name in plans}

    def run(values: Mapping[str, Sequence[float]], share: float, seed: int) -> dict[str, dict[float, float]]:
        trials = {
            (name, value): trial(plans[name][0], plans[name][1], value, share, seed)
            for name in values
            for value in values[name]
        }
        folders = execute(list(trials.values()))
        measured: dict[str, dict[float, float]] = {name: {} for name in values}
        for (name, value), planned in trials.items():
            metric = planned.settings.select_metric
            best = best_validation(folders[planned.label], metric) if planned.label in folders else None
            measured[name][value] = -math.inf if best is None else best
        return measured

    start = {name: starting_values(plan, setting, factors) for name, (plan, setting) in plans.items()}
    for turn in range(1 + ADDED_VALUES):
        values = start if turn == 0 else {name: [next_value(tried)] for name, tried in screened.items() if tried}
        values = {name: [_rounded(plans[name][1], value) for value in some] for name, some in values.items()}
        new = {name: [value for value in some if value not in screened[name]] for name, some in values.items()}
        for name, measured in run({name: some for name, some in new.items() if some}, *_rung(0)).items():
            screened[name] |= measured
        screened = {name: tried for name, tried in screened.items() if any(map(math.isfinite, tried.values()))}
    finals = run({name: finalists(plans[name][1], tried) for name, tried in screened.items()}, *_rung(1))
    return {
        name: Search(
            plans[name][1],
            value_of(plans[name][0], plans[name][1]),
            tried,
            finals[name],
            # A finalist that diverged or failed loses; the screening decides a tie.
            max(finals[name], key=lambda value, name=name: (finals[name][value], screened[name][value])),  # type: ignore[misc]
        )
        for name, tried in screened.items()
    }


def _rung(number: int) -> tuple[float, int]:
    return (SCREENING_SHARE, SCREENING_SEED) if number == 0 else (FINAL_SHARE, FINAL_SEED)


def next_value(tried: Values) -> float:
    """Beyond the best value if it is at an end of those tried, else between it and its better neighbor.

    >>> next_value({0.001: 10.0, 0.003: 20.0}), next_value({1.0: 5.0, 4.0: 9.0, 16.0: 7.0})
    (0.009, 8.0)
    """
    values = sorted(tried)
    best = values.index(max(values, key=tried.__getitem__))
    if len(values) == 1:
        return values[0] / 3
    if best == 0:
        return values[0] * values[0] / values[1]
    if best == len(values) - 1:
        return values[-1] * values[-1] / values[-2]
    neighbor = max(values[best - 1], values[best + 1], key=tried.__getitem__)
    return math.sqrt(values[best] * neighbor)


def finalists(setting: str, tried: Values) -> list[float]:
    """The values that are tried again in longer runs.

    >>> finalists("learning_rate", {0.001: 150.0, 0.003: 200.0, 0.009: 170.0})
    [0.009, 0.003]
    >>> finalists("learning_rate", {0.001: 370.0, 0.003: 400.0, 0.009: 402.0})
    [0.001, 0.003]
    """
    rates, best = sorted(tried), max(tried.values())
    nearly_best = [rate for rate in rates if tried[rate] >= NEARLY * best]
    if setting != "learning_rate" or len(nearly_best) == 1 or nearly_best[0] == rates[0]:
        return sorted(tried, key=tried.__getitem__)[-FINALISTS:]
    lowest = rates.index(nearly_best[0])
    return rates[lowest - 1 : lowest + 1]


def starting_values(plan: PlannedRun, setting: str, factors: Sequence[float]) -> list[float]:
    return [value_of(plan, setting) * factor for factor in factors]


def _rounded(setting: str, value: float) -> float:
    return float(max(1, round(value))) if setting == "epochs" else float(f"{value:.3g}")


def value_of(plan: PlannedRun, setting: str) -> float:
    if setting in ("learning_rate", "epochs"):
        return float(getattr(plan.settings, setting))
    return float(objective(plan.settings.objective, **plan.settings.objective_settings).settings[setting])


def with_value(plan: PlannedRun, setting: str, value: float) -> PlannedRun:
    if setting == "learning_rate":
        return with_learning_rate(plan, value)
    if setting == "epochs":
        return replace(plan, settings=with_epochs(plan.settings, round(value)))
    own = plan.settings.objective_settings | {setting: value}
    return replace(plan, settings=replace(plan.settings, objective_settings=own))


def trial(plan: PlannedRun, setting: str, value: float, share: float, seed: int) -> PlannedRun:
    """A shortened run with this value. The number of epochs is tuned with runs of that many."""
    tried = with_seed(with_value(plan, setting, value), seed)
    epochs = tried.settings.epochs if setting == "epochs" else max(1, round(share * tried.settings.epochs))
    note = f"{setting}={value:g}" if setting != "learning_rate" else ""
    return replace(tried, settings=with_epochs(tried.settings, epochs), note=f"{note} {epochs} epochs".strip())


def with_epochs(settings: TrainSettings, epochs: int) -> TrainSettings:
    """The same schedule over another number of epochs: everything that is counted in epochs is scaled."""
    ratio, last = epochs / settings.epochs, epochs - 1
    has_warmup = settings.warmup_objective is not None

    def scaled(epoch: int) -> int:
        return round(epoch * ratio)

    return replace(
        settings,
        epochs=epochs,
        warmup_epochs=settings.warmup_epochs * ratio,
        decay_epochs=tuple(sorted({max(1, scaled(epoch)) for epoch in settings.decay_epochs})),
        unfreeze_epoch=scaled(settings.unfreeze_epoch),
        ramp_epoch=None if settings.ramp_epoch is None else min(last, scaled(settings.ramp_epoch)),
        warmup_objective_epochs=max(1, scaled(settings.warmup_objective_epochs)) if has_warmup else 1,
        mine_every=None if settings.mine_every is None or last < 1 else min(last, max(1, scaled(settings.mine_every))),
    )


def own_constant(plan: PlannedRun) -> str | None:
    """The setting that shapes an objective's gradient most; None for a user's own, of which it is not known."""
    built = objective(plan.settings.objective, **plan.settings.objective_settings)
    if isinstance(built, NTXent | SmoothAP | Sigmoid):
        return "temperature"
    if isinstance(built, Goal):
        return "tau" if built.triplet_weight != "con" else "margin" if built.margin else None
    return "margin" if isinstance(built, Triplet | HardestTriplet | AOQ) else None


def best_validation(folder: Path, select_metric: str) -> float | None:
    """Maximum over epochs of the metric that selects the checkpoint."""
    return max(runs.read_selection(folder, select_metric), default=None)


def tuning_note(searches: Mapping[str, Sequence[Search]]) -> str:
    """Sentence on how settings were chosen."""
    if not any(searches.values()):
        return ""
    settings = list(dict.fromkeys(search.setting for tuned in searches.values() for search in tuned))
    words = {"learning_rate": "learning rate", "epochs": "number of epochs"}
    named = [words.get(setting, "own constant") for setting in settings]
    named = list(dict.fromkeys(named))
    what = named[0] if len(named) == 1 else f"{', '.join(named[:-1])} and {named[-1]}"
    trials = sum(len(search.screening) + len(search.final) for search in max(searches.values(), key=len))
    return (
        f"The {what} of each objective {'was' if len(named) == 1 else 'were'} tuned on validation: the same budget of "
        f"{trials} short runs each, with seeds that are not reported."
    )


def tuning_table(searches: Mapping[str, Sequence[Search]]) -> Table:
    """Every value tried, in ascending order, one row per variant and setting."""
    rows = []
    for name, tuned in searches.items():
        for search in tuned:
            label = name if search.setting == "learning_rate" else f"{name}: {search.setting}"
            rows.append((label, [_cell(search, value) for value in sorted(search.screening)]))
    columns = max((len(cells) for _, cells in rows), default=0)
    filled = [(label, [*cells, *[Cell("")] * (columns - len(cells))]) for label, cells in rows]
    title = "Tuning on validation: value, metric of the short run / of the longer one; bold: used"
    return Table(title, ("objective", *(f"value {number + 1}" for number in range(columns))), filled)


def _cell(search: Search, value: float) -> Cell:
    short, final = (_metric(values.get(value)) for values in (search.screening, search.final))
    return Cell(f"{value:g}: {short}{f' / {final}' if value in search.final else ''}", value == search.chosen)


def _metric(value: float | None) -> str:
    return "failed" if value is None or not math.isfinite(value) else f"{value:.1f}"
