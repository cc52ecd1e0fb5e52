"""Optimizer, frozen parameters and learning-rate schedule."""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import nn

from tercet.interfaces import TorchModule
from tercet.training.settings import TrainSettings

OPTIMIZERS: Mapping[str, Any] = {"adam": torch.optim.Adam, "adamw": torch.optim.AdamW}

Factor = Callable[[int], float]
"""Step -> factor on the learning rate."""


def freeze(model: TorchModule, frozen: Sequence[str]) -> None:
    """Freeze the parameters with these name prefixes. Raises if a prefix matches nothing, or nothing is left."""
    for prefix in frozen:
        for parameter in _with_prefix(model, prefix).values():
            parameter.requires_grad_(False)
    if not any(parameter.requires_grad for parameter in model.parameters()):
        raise ValueError(f"--frozen {' '.join(frozen)} leaves no parameters to train")


def make_optimizer(
    model: TorchModule, settings: TrainSettings, objective: nn.Module | None = None
) -> torch.optim.Optimizer:
    """One parameter group per learning rate and weight decay, with frozen parameters: they may be unfrozen later.

    Parameters of a user's objective have the base learning rate and no weight decay.
    """
    multipliers = dict.fromkeys((name for name, _ in model.named_parameters()), 1.0)
    for prefix, factor in settings.lr_multipliers.items():
        multipliers |= dict.fromkeys(_with_prefix(model, prefix), float(factor))
    decays = {
        name: settings.weight_decay if settings.decay_norm_and_bias or parameter.ndim > 1 else 0.0
        for name, parameter in model.named_parameters()
    }
    parameters = dict(model.named_parameters())
    groups: list[dict[str, Any]] = [
        {
            "params": [p for name, p in parameters.items() if (multipliers[name], decays[name]) == (factor, decay)],
            "lr": settings.learning_rate * factor,
            "weight_decay": decay,
        }
        for factor, decay in sorted({(multipliers[name], decays[name]) for name in multipliers}, reverse=True)
    ]
    of_objective = [] if objective is None else list(objective.parameters())
    if of_objective:
        groups.append({"params": of_objective, "lr": settings.learning_rate, "weight_decay": 0.0})
    # fused: one pass over all parameters of a group instead of a dozen small operations per parameter.
    betas = (0.9, settings.adam_beta2)
    optimizer: torch.optim.Optimizer = OPTIMIZERS[settings.optimizer](groups, betas=betas, fused=True)
    return optimizer


def _with_prefix(model: TorchModule, prefix: str) -> dict[str, nn.Parameter]:
    parameters = {
        name: parameter
        for name, parameter in model.named_parameters()
        if name == prefix or name.startswith(f"{prefix}.")
    }
    if not parameters:
        modules = ", ".join(name for name, _ in model.named_children())
        raise ValueError(f"no parameter name starts with {prefix!r}; the modules of the model are: {modules}")
    return parameters


def schedule(
    optimizer: torch.optim.Optimizer, settings: TrainSettings, steps_per_epoch: int, step: int
) -> torch.optim.lr_scheduler.LambdaLR:
    """Return the learning-rate schedule, set to this step."""
    for group in optimizer.param_groups:
        group.setdefault("initial_lr", group["lr"])
    return torch.optim.lr_scheduler.LambdaLR(optimizer, lr_factor(settings, steps_per_epoch), last_epoch=step - 1)


def lr_factor(settings: TrainSettings, steps_per_epoch: int) -> Factor:
    """Return the factor on the learning rate at each step: linear warmup, then the named schedule."""
    total = settings.epochs * steps_per_epoch
    warmup = round(settings.warmup_epochs * steps_per_epoch)
    if warmup >= total:  # a run of one epoch would be warmup only
        warmup = total // 10
    schedules: dict[str, Factor] = {
        "cosine": lambda step: 0.5 * (1 + math.cos(math.pi * min(1.0, (step - warmup) / max(1, total - warmup)))),
        "linear": lambda step: max(0.0, 1 - (step - warmup) / max(1, total - warmup)),
        "steps": lambda step: settings.decay ** sum(step >= epoch * steps_per_epoch for epoch in settings.decay_epochs),
        "constant": lambda step: 1.0,
    }
    after_warmup = schedules[settings.schedule]
    return lambda step: (step + 1) / warmup if step < warmup else after_warmup(step)
