"""The objective of a run: settings of the recipe, and a learned scale in place of a temperature (CLIP, SigLIP, X-VLM).

Objectives that divide by a temperature are given the model's own, unless one is named; then that one is fixed.
Objectives with a margin take plain cosines: a scale would only undo the margin.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from jaxtyping import Float
from torch import Tensor

from tercet.contracts import Similarity
from tercet.models import SYSTEMS, preset
from tercet.objectives import RowObjective, objective
from tercet.training.recipes import RECIPES

Named = Mapping[str, Any]
"""Settings of the objective that the caller named."""


def objective_for(model: str, name: str, named: Named) -> RowObjective:
    """With what the recipe of the model says, as far as the objective has such settings; what is named wins."""
    usual = objective(name, **named).settings
    recipe = RECIPES.get(model, {}).get("objective_settings", {})
    wanted = {key: value for key, value in recipe.items() if key in usual} | dict(named)
    if takes_scale(model, usual, named):
        wanted["temperature"] = 1.0
    return objective(name, **wanted)


def takes_scale(model: str, has: Mapping[str, Any], named: Named) -> bool:
    """Whether an objective with these settings is given the model's learned scale."""
    learns = getattr(SYSTEMS[preset(model)[0]].model, "learns_scale", False)
    return bool(learns) and "temperature" in has and "temperature" not in named


def fitted(made: RowObjective, model: Any, named: Named) -> RowObjective:
    """Without a bias of its own where the model brings one and none is named."""
    if scale_and_bias(model, made, named)[1] is None:
        return made
    return replace(made, bias=0.0)  # type: ignore[call-arg]  # of those that have one


def scaled(similarity: Similarity, model: Any, made: RowObjective, named: Named) -> Similarity:
    """As the objective sees it."""
    scale, bias = scale_and_bias(model, made, named)
    similarity = similarity if scale is None else scale * similarity
    return similarity if bias is None else similarity + bias


def scale_and_bias(
    model: Any, made: RowObjective, named: Named
) -> tuple[Float[Tensor, ""] | None, Float[Tensor, ""] | None]:
    """What the model brings to this objective; None where it brings nothing."""
    if not getattr(model, "learns_scale", False) or "temperature" not in made.settings or "temperature" in named:
        return None, None
    scale, bias = model.scale_and_bias()
    return scale, bias if "bias" in made.settings and "bias" not in named else None
