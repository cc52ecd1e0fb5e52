"""Recipes of BFAN (Liu et al., ACM MM 2019), and AOQ's second round for it."""

from typing import Any

from tercet.recipes import scan
from tercet.recipes.base import VSE_LINEAGE, Recipe

_F30K = scan.F30K | {"epochs": 15, "decay_epochs": ()}
_COCO = scan.COCO | {"decay_epochs": (15,)}

DEFAULT = Recipe({}, VSE_LINEAGE | {"positives": "ids"})
RECIPES = {
    "bfan-f30k": Recipe({}, _F30K),
    "bfan-coco": Recipe({}, _COCO),
    "bfan-prob-f30k": Recipe({"focus": "prob"}, _F30K),
    "bfan-prob-coco": Recipe({"focus": "prob"}, _COCO),
}
# By prefix of the recipe name, as released: COCO keeps the learning rate of its first round, 5e-4.
SECOND_ROUND: dict[str, dict[str, Any]] = {
    "bfan-coco": {"epochs": 15, "decay_epochs": (10,)},
    "bfan-prob-coco": {"epochs": 15, "decay_epochs": (10,)},
    "bfan": {"epochs": 15, "learning_rate": 2e-4, "decay_epochs": (10,)},
}
