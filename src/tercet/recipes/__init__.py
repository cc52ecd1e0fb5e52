"""Published recipes: model settings and training settings of each paper, one file per system. Values only, no code."""

from tercet.recipes.registry import RECIPES, training_values

__all__ = ["RECIPES", "training_values"]
