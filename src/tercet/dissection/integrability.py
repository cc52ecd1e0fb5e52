"""Which cells of GOAL have a loss behind them: circulation of the gradient, beside what the paper's Table 1 says."""

from dataclasses import dataclass
from typing import Any

from tercet.analysis.circulation import Circulation, round_positives, round_triplets
from tercet.objectives import objective
from tercet.objectives.goal import PAIR_WEIGHTS, READINGS, TRIPLET_WEIGHTS
from tercet.pages.table import Cell, Table

# All fifteen, as the paper prints them and as the authors' program has them.
CELLS = [(f"{T}/{P}", reading) for reading in READINGS for P in PAIR_WEIGHTS for T in TRIPLET_WEIGHTS]
# The paper's Table 1 names the losses that cells are gradients of; the other ten it calls New.
TABLE_1 = {
    "con/con": "triplet loss",
    "nca/con": "NT-Xent loss",
    "cir/lin": "circle loss",
    "con/sig": "binomial deviance",
    "con/sig-ms": "MS loss",
}
# (cell, reading) -> how it differs from the loss that Table 1 names, or that a cell it calls New has one.
DIFFERENCES = {
    (
        "con/con",
        "code",
    ): "Has a loss, S_n - S_p, but not the triplet loss: without the gate no triplet is ever satisfied.",
    ("con/sig", "paper"): "Binomial deviance has no margin. Gated by Eq. 5, the gradient jumps across S_p - S_n = m by "
    "(-P+, P-), which stands at right angles to that line only where P+ = P-: a loss would be torn along it.",
    ("con/sig-ms", "paper"): "Gated like con/sig, and each pair's weight depends on other pairs without the return "
    "that a loss would give: MS loss spreads its gradient over all members of its sets, this cell pushes one.",
    ("con/sig-ms", "code"): "Without the gate a lone triplet has a loss, but a weight depends on other positive pairs "
    "that get nothing back: MS loss sums over its sets and pulls all members, this cell takes a mean and pulls one.",
    ("con/lin", "code"): "Called New; without the gate it is the gradient of (1 - S_p)^2 / 2 + S_n^2 / 2.",
}


@dataclass(frozen=True)
class Judged:
    cell: str
    reading: str
    triplets: Circulation
    positives: Circulation

    @property
    def has_loss(self) -> bool:
        return self.triplets.vanishes and self.positives.vanishes

    def content(self) -> dict[str, Any]:
        return {
            "cell": self.cell,
            "reading": self.reading,
            "triplets": vars(self.triplets),
            "positives": vars(self.positives),
            "has_loss": self.has_loss,
            "table_1": TABLE_1.get(self.cell, "New"),
        }


def judge(cell: str, reading: str) -> Judged:
    made = objective(cell, reading=reading)
    return Judged(cell, reading, round_triplets(made), round_positives(made))


def tables(judged: list[Judged]) -> list[Table]:
    """One a reading."""
    made = []
    for reading in READINGS:
        rows = [(each.cell, _cells(each)) for each in judged if each.reading == reading]
        headings = ("cell", "Table 1", "in (S_p, S_n)", "in (S_p, S_p')", "a loss exists")
        made.append(Table(f"Largest circulation of the gradient, reading={reading}", headings, rows))
    return made


def _cells(each: Judged) -> list[Cell]:
    return [
        Cell(TABLE_1.get(each.cell, "New")),
        *(Cell("0" if around.vanishes else f"{around.largest:.3f}") for around in (each.triplets, each.positives)),
        Cell("yes" if each.has_loss else "no", each.has_loss),
    ]


def explanations(judged: list[Judged]) -> list[str]:
    """A sentence for every cell that is not what Table 1 says of it."""
    said = [(each, DIFFERENCES.get((each.cell, each.reading))) for each in judged]
    return [f"{each.cell}, reading={each.reading}: {sentence}" for each, sentence in said if sentence is not None]
