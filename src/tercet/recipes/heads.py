"""Projection heads on frozen features: our defaults, not from a paper."""

from tercet.recipes.base import Recipe

DEFAULT = Recipe({}, {})
RECIPES: dict[str, Recipe] = {}
