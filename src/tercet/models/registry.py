"""Registry of systems: builds a model by the name of a system or a published recipe, or of a class in a file.

`build_for_weights` builds one for stored weights, whose configuration may come from an untrusted source: it gets no
more memory than the weights need. Two sizes of 100,000 would take 40 GB before the first weight is read, and ten
million layers would never be done.
"""

import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any, Literal, get_args, get_origin, get_type_hints

import torch
from torch import nn
from torch.nn.modules.module import register_module_parameter_registration_hook

from tercet.hub import is_pretrained
from tercet.interfaces import LogitScale, RetrievalModel, System, SystemSpec, TorchModule
from tercet.models.bfan import BFAN
from tercet.models.clip import CLIP
from tercet.models.heads import Heads
from tercet.models.scan import SCAN
from tercet.models.text_towers import TextTowers
from tercet.models.vse_infinity import VSEInfinity
from tercet.models.vsepp import VSEPP
from tercet.models.vsrn import VSRN
from tercet.models.xvlm import XVLM
from tercet.names import suggest
from tercet.plugins import from_entry_point, from_file, installed, is_file_name
from tercet.recipes import RECIPES, TRAINING, recipe_of

SIZE_SETTINGS = ("vocab_size", "layers", "caption_length")  # besides those that end in dim
MAX_SIZE = 10_000_000
ENTRY_POINTS = "tercet.models"
SHARED = 4  # a weight that modules share is counted each time
SMALL = 1_000_000  # weights that any model may have, for a message that names the wrong one
LISTED_ERRORS = 10
REQUIRED = ("settings", "dot_product", "encode_images", "encode_captions", "similarity", "state_dict")

Shapes = Mapping[str, tuple[int, ...]]

SYSTEMS: dict[str, System] = {
    "heads": Heads,
    "vsepp": VSEPP,
    "vsrn": VSRN,
    "vse-infinity": VSEInfinity,
    "scan": SCAN,
    "bfan": BFAN,
    "xvlm": XVLM,
    "clip": CLIP,
    "text-towers": TextTowers,
}


def model_names() -> list[str]:
    """All names that `build` takes: systems, those of installed packages, and published recipes."""
    return [*SYSTEMS, *installed(ENTRY_POINTS), *RECIPES]


def preset(name: str) -> tuple[str, dict[str, Any]]:
    """System name and model settings of a published recipe, of a CLIP or SigLIP on disk or on the hub, or of a system
    with its defaults.
    """
    if name in SYSTEMS or is_file_name(name) or (name in installed(ENTRY_POINTS) and name not in RECIPES):
        return name, {}
    if name not in RECIPES and is_pretrained(name):
        return "clip", {"clip": name}
    if name not in RECIPES:
        known = model_names()
        raise ValueError(f"no model {name!r}{suggest(name, known)}; known: {', '.join(known)}")
    system, recipe = RECIPES[name]
    return system, recipe.model


def system_of(name: str) -> System:
    """The model class of a system, or of the class `path/to/mine.py:Class`."""
    if name in SYSTEMS:
        return SYSTEMS[name]
    if not is_file_name(name) and name not in installed(ENTRY_POINTS):
        raise ValueError(f"unknown system {name!r}{suggest(name, SYSTEMS)}; known: {', '.join(SYSTEMS)}")
    found: Any = from_file(name) if is_file_name(name) else from_entry_point(ENTRY_POINTS, name)
    spec: Any = vars(found).get("spec") if isinstance(found, type) else None
    if not isinstance(spec, SystemSpec) or not is_dataclass(spec.settings):
        raise ValueError(
            f"{name} is not a model class: it needs a class attribute `spec`, a tercet.interfaces.SystemSpec with the "
            "dataclass of its settings"
        )
    system: System = found
    return system


def learns_scale(name: str) -> bool:
    """Whether models of this system or recipe have a learned scale."""
    system = system_of(preset(name)[0])
    return isinstance(system, type) and issubclass(system, LogitScale)


def training_defaults(name: str, training_round: int = 1) -> dict[str, Any]:
    """Training settings of a system or recipe: those of the paper, or of the model's own `spec`."""
    recipe = recipe_of(name)
    if recipe is not None:
        return TRAINING[training_round][recipe]
    return dict(system_of(name).spec.training)


def build(name: str, **settings: Any) -> RetrievalModel:
    """Build a model by the name of a system or preset; the given settings override the preset's.

    >>> build("heads", image_dim=8, caption_dim=6).dot_product
    True
    """
    system, preset_settings = preset(name)
    model_class = system_of(system)
    known = [field.name for field in fields(model_class.spec.settings)]
    for key in settings:
        if key not in known:
            raise ValueError(f"{system} has no setting {key!r}{suggest(key, known)}; it has: {', '.join(known)}")
    merged = preset_settings | settings
    if settings.get("image_dim") is not None and settings.get("backbone") is None:
        merged.pop("backbone", None)  # precomputed features replace a preset's backbone
    try:
        resolved = model_class.spec.settings(**merged)
    except TypeError as error:
        raise ValueError(f"{name}: {str(error).split('__init__() ')[-1]}") from error
    _check_values(system, resolved)
    model = model_class(resolved)
    if not isinstance(model, RetrievalModel):
        missing = [part for part in REQUIRED if part not in dir(model)]
        lacks = f"it has no {', '.join(missing)}" if missing else "its methods must be functions, not submodules"
        raise ValueError(f"{name} is not a retrieval model: {lacks}")
    return model


def _check_values(system: str, settings: Any) -> None:
    """Check choices, booleans, numbers and sizes against the annotated types."""
    annotations = get_type_hints(type(settings))
    for field in fields(settings):
        value, annotation = getattr(settings, field.name), annotations[field.name]
        if get_origin(annotation) is Literal and value not in get_args(annotation):
            choices = list(get_args(annotation))
            raise ValueError(
                f"{system}: {field.name} must be one of {', '.join(choices)}, "
                f"got {value!r}{suggest(str(value), choices)}"
            )
        if annotation is bool and not isinstance(value, bool):
            raise ValueError(f"{system}: {field.name} must be true or false, got {value!r}")
        if annotation is float and not (isinstance(value, (int, float)) and 0 < value < float("inf")):
            raise ValueError(f"{system}: {field.name} must be a number above 0, got {value!r}")
        if annotation is int and not isinstance(value, int):
            raise ValueError(f"{system}: {field.name} must be a whole number, got {value!r}")
        is_size = (field.name.endswith("dim") or field.name in SIZE_SETTINGS) and value is not None
        if is_size and not (isinstance(value, int) and 1 <= value <= MAX_SIZE):
            raise ValueError(f"{system}: {field.name} must be a whole number from 1 to {MAX_SIZE:,}, got {value!r}")


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
