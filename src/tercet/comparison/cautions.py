"""What speaks against a claim about a row of a comparison: training that was too short, too long or failed.

The measurements and thresholds are those of `tercet doctor` that need no model, only the record of a run.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import mean
from typing import Literal

from tercet import runs
from tercet.analysis.diagnostics.measurements import CHANCE_LEVEL, rise_and_fall, shares_ahead
from tercet.analysis.diagnostics.rules import RULES
from tercet.comparison.results import Results, Run
from tercet.comparison.tuning import Search

THRESHOLDS = {rule.name: rule.threshold for rule in RULES}

Kind = Literal["rising", "over-fitted", "at chance level", "rate at the end"]


@dataclass(frozen=True)
class Caution:
    """About one variant."""

    name: str
    kind: Kind
    measured: str
    """With numbers, for the sentence "NAME (measured)"."""

    @property
    def voids(self) -> bool:
        """The row carries no claim: with another number of epochs it might be elsewhere in the table."""
        return self.kind != "rate at the end"


def cautions(results: Results, tuned: Mapping[str, Sequence[Search]]) -> list[Caution]:
    """Everything that speaks against a claim, in the order of the variants."""
    found = []
    for name in results.names():
        trained = _of_training(name, list(results.runs[name].values()))
        rate = _of_rate(name, tuned[name][0]) if tuned.get(name) else None
        found += [caution for caution in (trained, rate) if caution is not None]
    return found


def _of_training(name: str, variant_runs: Sequence[Run]) -> Caution | None:
    """Means over seeds, by the first rule that applies."""
    ahead = min(mean(shares) for shares in zip(*map(_shares_ahead, variant_runs), strict=True))
    if ahead > CHANCE_LEVEL:
        return Caution(name, "at chance level", f"{100 * ahead:.0f} % of the negatives are ahead of a positive")
    changes = [rise_and_fall(_curve(run)) for run in variant_runs]
    rises = [rise for rise, _ in changes if rise is not None]
    falls = [fall for _, fall in changes if fall is not None]
    if rises and mean(rises) > THRESHOLDS["under-training"]:
        return Caution(name, "rising", f"by {100 * mean(rises):.0f} % in the last third of the epochs")
    if falls and mean(falls) > THRESHOLDS["over-fitting"]:
        return Caution(name, "over-fitted", f"by {100 * mean(falls):.0f} % after the best epoch")
    return None


def _of_rate(name: str, search: Search) -> Caution | None:
    if not search.at_end:
        return None
    end = "smallest" if search.chosen == min(search.screening) else "largest"
    return Caution(name, "rate at the end", f"{search.chosen:g}, the {end} of {len(search.screening)}")


def _curve(run: Run) -> list[float]:
    return runs.read_selection(run.folder, str(runs.read_settings(run.folder).get("select_metric", "rsum")))


def _shares_ahead(run: Run) -> tuple[float, float]:
    images, captions = (int(ids.max()) + 1 for ids in (run.ranks.image("i2t"), run.ranks.caption("t2i")))
    return shares_ahead(run.ranks, images=images, captions=captions)
