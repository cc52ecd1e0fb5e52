"""Registry of recipes: the defaults of every system, and the published recipes."""

from typing import Any

from tercet.recipes import bfan, clip, heads, scan, vse_infinity, vsepp, vsrn, xvlm
from tercet.recipes.base import Recipe

SYSTEMS = {
    "heads": heads,
    "vsepp": vsepp,
    "vsrn": vsrn,
    "vse-infinity": vse_infinity,
    "scan": scan,
    "bfan": bfan,
    "xvlm": xvlm,
    "clip": clip,
}
DEFAULTS: dict[str, Recipe] = {name: module.DEFAULT for name, module in SYSTEMS.items()}
RECIPES: dict[str, tuple[str, Recipe]] = {
    name: (system, recipe) for system, module in SYSTEMS.items() for name, recipe in module.RECIPES.items()
}
"""Name of a published recipe -> its system and settings."""
SECOND_ROUND: dict[str, dict[str, Any]] = vsrn.SECOND_ROUND | bfan.SECOND_ROUND | scan.SECOND_ROUND


def training_values(model: str, training_round: int = 1) -> dict[str, Any]:
    """Training settings for a system or recipe; empty if unknown. Round 2 is AOQ's second round."""
    recipe = DEFAULTS.get(model) or RECIPES.get(model, ("", Recipe({}, {})))[1]
    values = recipe.training
    if training_round != 2:
        return values
    changes = next((change for name, change in SECOND_ROUND.items() if model.startswith(name)), {})
    return values | {"objective": "aoq"} | changes
