"""Objectives under a trainer whose model has a learned scale, perhaps a bias: S = scale * images @ captions.T + bias.

The scale takes the place of a temperature: an objective with a `temperature` gets the scaled S, with temperature 1
unless it was named; likewise a `bias`. Objectives with a margin take cosines: a scale would undo the margin.
"""

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from tercet.objectives import RowObjective
from tercet.objectives.inputs import Default

Factor = float | Tensor | None
NEUTRAL = {"temperature": 1.0, "bias": 0.0}


def with_learned_scale(objective: RowObjective, scale: Factor, bias: Factor) -> tuple[RowObjective, Factor, Factor]:
    """Return the objective with neutral settings in place of defaults, and the scale and bias that it uses, or None."""
    used = {"temperature": scale, "bias": bias}
    used = {name: _one_number(factor) if name in objective.settings else None for name, factor in used.items()}
    neutral = {
        name: NEUTRAL[name] for name, factor in used.items() if factor is not None and _at_default(objective, name)
    }
    return objective.with_settings(**neutral) if neutral else objective, used["temperature"], used["bias"]


def scalar_with_scale(
    objective: RowObjective, images: Tensor, captions: Tensor, scale: Factor, bias: Factor, **ids: Any
) -> Float[Tensor, ""]:
    """The objective's scalar with the scale and bias that it uses; those that it does not use get a gradient of 0.

    Without that gradient DistributedDataParallel stops at the second step.
    """
    fitted, used_scale, used_bias = with_learned_scale(objective, scale, bias)
    scalar = fitted(images, captions, scale=used_scale, bias=used_bias, **ids)
    for factor, used in ((scale, used_scale), (bias, used_bias)):
        if used is None and torch.is_tensor(factor):
            scalar = scalar + 0.0 * factor.sum()
    return scalar


def _one_number(factor: Factor) -> Factor:
    """SigLIP's parameters, and all that FSDP2 shards, have shape (1,)."""
    return factor.reshape(()) if isinstance(factor, Tensor) and factor.numel() == 1 else factor


def _at_default(objective: RowObjective, setting: str) -> bool:
    """Whether the user did not name this setting."""
    value: Any = getattr(objective, setting, None)
    return isinstance(value, Default) if value is not None else setting not in objective.changed_settings
