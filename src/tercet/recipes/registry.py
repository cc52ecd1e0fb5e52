"""Registry of recipes: the defaults of every system, and the published recipes."""

from typing import Any

from tercet.hub import is_pretrained, is_siglip
from tercet.recipes import bfan, clip, heads, scan, text_towers, vse_infinity, vsepp, vsrn, xvlm
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
    "text-towers": text_towers,
}
DEFAULTS: dict[str, Recipe] = {name: module.DEFAULT for name, module in SYSTEMS.items()}
RECIPES: dict[str, tuple[str, Recipe]] = {
    name: (system, recipe) for system, module in SYSTEMS.items() for name, recipe in module.RECIPES.items()
}
"""Name of a published recipe -> its system and settings."""
SECOND_ROUND: dict[str, dict[str, Any]] = vsrn.SECOND_ROUND | bfan.SECOND_ROUND | scan.SECOND_ROUND
_FIRST_ROUND: dict[str, dict[str, Any]] = {name: recipe.training for name, recipe in DEFAULTS.items()} | {
    name: recipe.training for name, (_, recipe) in RECIPES.items()
}
TRAINING: dict[int, dict[str, dict[str, Any]]] = {
    1: _FIRST_ROUND,
    2: {
        name: values
        | {"objective": "aoq"}
        | next((change for system, change in SECOND_ROUND.items() if name.startswith(system)), {})
        for name, values in _FIRST_ROUND.items()
    },
}
"""Training round -> system or recipe -> training settings. Round 2 is AOQ's."""


def recipe_of(name: str) -> str | None:
    """The name whose training settings a model has: its own, or those of CLIP or SigLIP for one of Hugging Face."""
    if name in _FIRST_ROUND:
        return name
    return ("siglip-b16" if is_siglip(name) else "clip") if is_pretrained(name) else None
