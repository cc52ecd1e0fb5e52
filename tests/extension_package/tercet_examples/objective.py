"""An objective: squared distance to 1 for positives and to 0 for negatives."""

from dataclasses import dataclass

from tercet.objectives.base import RowObjective


@dataclass(frozen=True, kw_only=True, repr=False)
class Squared(RowObjective):
    name = "squared"
    weight: float = 1.0  # settings are fields: --objective-settings weight=2

    def row_gradient(self, rows):
        pull = (rows.similarity - 1) * rows.positives
        return 2 * (pull + self.weight * rows.similarity * rows.negatives)

    def row_value(self, rows):
        push = rows.similarity.square() * rows.negatives
        return ((rows.similarity - 1).square() * rows.positives + self.weight * push).sum(dim=1)
