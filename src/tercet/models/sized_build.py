"""Build a model for stored weights: a configuration asks for no more memory than the weights need.

The configuration of a saved model may come from an untrusted source. Two sizes of 100,000 would take 40 GB before the
first weight is read, and ten million layers would never be done.
"""

import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn.modules.module import register_module_parameter_registration_hook

from tercet.interfaces import RetrievalModel, TorchModule
from tercet.models.registry import SYSTEMS, build

Shapes = Mapping[str, tuple[int, ...]]
SHARED = 4  # a weight that modules share is counted each time
SMALL = 1_000_000  # weights that any model may have, for a message that names the wrong one
LISTED_ERRORS = 10


def stored_shapes(file: Path) -> dict[str, tuple[int, ...]]:
    """Shapes of the tensors in a safetensors file; only its header is read."""
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(file, framework="pt") as weights:
            return {name: tuple(weights.get_slice(name).get_shape()) for name in weights.keys()}  # noqa: SIM118
    except (OSError, SafetensorError) as error:
        raise ValueError(f"{file}: cannot be read: {error}") from error


def build_for_weights(system: str, settings: dict[str, Any], shapes: Shapes, file: Path) -> RetrievalModel:
    """Build the model whose weights have these shapes; `ValueError` if its own are others."""
    limit = SMALL + SHARED * sum(torch.Size(shape).numel() for shape in shapes.values())
    with at_most(limit, file):
        if SYSTEMS.get(system) is not None:  # what a class from outside does when it is built is not known
            check_shapes(_built_without_memory(system, settings), shapes, file)
        model = build(system, **settings)
    check_shapes(model, shapes, file)
    return model


def _built_without_memory(system: str, settings: dict[str, Any]) -> RetrievalModel | None:
    """The model with shapes but no values; None if its constructor computes with values."""
    try:
        with torch.device("meta"):
            return build(system, **settings)
    except (NotImplementedError, RuntimeError):
        return None


def check_shapes(model: TorchModule | None, shapes: Shapes, file: Path) -> None:
    if model is None:
        return
    expected = {name: tuple(tensor.shape) for name, tensor in model.state_dict().items()}
    errors = [f"missing: {name}" for name in expected if name not in shapes]
    errors += [f"unexpected: {name}" for name in shapes if name not in expected]
    errors += [
        f"wrong shape: {name} {shapes[name]}, expected {shape}"
        for name, shape in expected.items()
        if name in shapes and shapes[name] != shape
    ]
    if errors:
        raise misfit(file, errors)


def misfit(file: Path | str, errors: list[str]) -> ValueError:
    more = f"; and {len(errors) - LISTED_ERRORS} more" if len(errors) > LISTED_ERRORS else ""
    return ValueError(f"{file} does not fit the model, nothing was loaded: {'; '.join(errors[:LISTED_ERRORS])}{more}")


@contextmanager
def at_most(limit: int, file: Path) -> Iterator[None]:
    """Raise `ValueError` as soon as modules that are built in this thread have more parameters."""
    thread, count = threading.get_ident(), 0

    def add(module: nn.Module, name: str, parameter: nn.Parameter) -> None:
        nonlocal count
        if threading.get_ident() == thread and parameter is not None:
            count += parameter.numel()
            if count > limit:
                raise ValueError(f"the configuration describes a larger model than the weights in {file}")

    hook = register_module_parameter_registration_hook(add)
    try:
        yield
    finally:
        hook.remove()
