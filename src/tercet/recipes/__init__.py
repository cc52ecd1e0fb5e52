"""Published recipes: model settings and training settings of each paper, one file per system."""

from tercet.recipes.registry import DEFAULTS, RECIPES, TRAINING, recipe_of

__all__ = ["DEFAULTS", "RECIPES", "TRAINING", "recipe_of"]
