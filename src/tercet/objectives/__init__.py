"""Objectives: (S, positives) -> pair gradient G. Independent of models, devices and files."""

from tercet.objectives.base import RowObjective
from tercet.objectives.registry import AOQ_OBJECTIVES, OBJECTIVES, objective

__all__ = ["AOQ_OBJECTIVES", "OBJECTIVES", "RowObjective", "objective"]
