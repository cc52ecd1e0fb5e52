"""Weights -> an optimizer: which are trained, each part at its own rate."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import nn

from tercet.training.settings import TrainSettings

OPTIMIZERS: Mapping[str, Any] = {"adam": torch.optim.Adam, "adamw": torch.optim.AdamW}


def freeze(model: nn.Module, frozen: Sequence[str]) -> None:
    """Parts by the beginning of their name; a name that nothing begins with is a mistake."""
    for start in frozen:
        for parameter in _beginning_with(model, start).values():
            parameter.requires_grad_(False)
    if not any(parameter.requires_grad for parameter in model.parameters()):
        raise ValueError("--frozen leaves nothing to train")


def make_optimizer(model: nn.Module, settings: TrainSettings) -> torch.optim.Optimizer:
    """The group of each rate holds all its weights, frozen ones too: they may thaw."""
    rates = dict.fromkeys((name for name, _ in model.named_parameters()), 1.0)
    for start, factor in settings.part_rates.items():
        rates |= dict.fromkeys(_beginning_with(model, start), float(factor))
    decays = {
        name: settings.weight_decay if settings.decay_vectors or parameter.ndim > 1 else 0.0
        for name, parameter in model.named_parameters()
    }
    parameters = dict(model.named_parameters())
    groups: list[dict[str, Any]] = [
        {
            "params": [parameters[name] for name in rates if (rates[name], decays[name]) == (factor, decay)],
            "lr": settings.learning_rate * factor,
            "weight_decay": decay,
        }
        for factor, decay in sorted({(rates[name], decays[name]) for name in rates}, reverse=True)
    ]
    # One pass over all weights of a group instead of a dozen small operations each.
    made: torch.optim.Optimizer = OPTIMIZERS[settings.optimizer](groups, betas=(0.9, settings.second_beta), fused=True)
    return made


def _beginning_with(model: nn.Module, start: str) -> dict[str, nn.Parameter]:
    found = {
        name: parameter for name, parameter in model.named_parameters() if name == start or name.startswith(f"{start}.")
    }
    if not found:
        parts = ", ".join(name for name, _ in model.named_children())
        raise ValueError(f"no weights begin with {start!r}; the model's parts are: {parts}")
    return found
