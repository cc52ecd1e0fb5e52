"""Published recipes: model settings and training settings of each paper, one file per system. Values only, no code."""

from tercet.recipes.registry import DEFAULTS, RECIPES, TRAINING

__all__ = ["DEFAULTS", "RECIPES", "TRAINING"]
