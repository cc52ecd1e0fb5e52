"""A learned scale in place of a temperature: CLIP's, SigLIP's with its bias, X-VLM's.

Objectives that divide by a temperature are given the model's own, unless one is named; then that one is fixed.
Objectives with a margin take plain cosines: a scale would only undo the margin.
"""

from collections.abc import Mapping
from typing import Any

from jaxtyping import Float
from torch import Tensor

from tercet.contracts import Similarity
from tercet.models import SYSTEMS, preset
from tercet.objectives import RowObjective, objective

NEUTRAL = {"temperature": 1.0, "bias": 0.0}


def objective_for(model: str, name: str, named: Mapping[str, Any]) -> RowObjective:
    """With a neutral temperature and bias where the model brings its own."""
    made = objective(name, **named)
    learns = getattr(SYSTEMS[preset(model)[0]].model, "learns_scale", False)
    if not learns or "temperature" not in made.settings or "temperature" in named:
        return made
    return objective(name, **{key: value for key, value in NEUTRAL.items() if key in made.settings} | dict(named))


def scale_and_bias(model: Any, made: RowObjective) -> tuple[Float[Tensor, ""] | None, Float[Tensor, ""] | None]:
    """What the model brings to this objective; None where it brings nothing."""
    if not getattr(model, "learns_scale", False) or made.settings.get("temperature") != NEUTRAL["temperature"]:
        return None, None
    scale, bias = model.scale_and_bias()
    return scale, bias if "bias" in made.settings else None


def scaled(similarity: Similarity, model: Any, made: RowObjective) -> Similarity:
    """As the objective sees it."""
    scale, bias = scale_and_bias(model, made)
    similarity = similarity if scale is None else scale * similarity
    return similarity if bias is None else similarity + bias
