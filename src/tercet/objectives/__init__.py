"""S, positives -> G: the mathematics of objectives, with nothing of models, devices or files in it."""

from tercet.objectives.base import RowObjective
from tercet.objectives.catalogue import CATALOGUE, WITH_MINED, objective

__all__ = ["CATALOGUE", "WITH_MINED", "RowObjective", "objective"]
