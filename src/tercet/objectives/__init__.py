"""Objectives: (S, positives) -> pair gradient G. Independent of models, devices and files."""

from tercet.objectives.aoq import AOQ
from tercet.objectives.base import RowObjective
from tercet.objectives.binomial_deviance import BinomialDeviance
from tercet.objectives.circle import Circle
from tercet.objectives.composed import Composed
from tercet.objectives.goal.cells import Goal
from tercet.objectives.hardest_triplet import HardestTriplet
from tercet.objectives.learned import Learned
from tercet.objectives.multi_similarity import MultiSimilarity
from tercet.objectives.nt_xent import NTXent
from tercet.objectives.queue import Queue
from tercet.objectives.registry import AOQ_OBJECTIVES, OBJECTIVES, ObjectiveLike, objective
from tercet.objectives.sigmoid import Sigmoid
from tercet.objectives.smooth_ap import SmoothAP
from tercet.objectives.triplet import Triplet

__all__ = [
    "AOQ",
    "AOQ_OBJECTIVES",
    "OBJECTIVES",
    "BinomialDeviance",
    "Circle",
    "Composed",
    "Goal",
    "HardestTriplet",
    "Learned",
    "MultiSimilarity",
    "NTXent",
    "ObjectiveLike",
    "Queue",
    "RowObjective",
    "Sigmoid",
    "SmoothAP",
    "Triplet",
    "objective",
]
