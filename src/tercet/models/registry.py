"""Registry of systems: builds a model by the name of a system or a published recipe, or of a class in a file."""

from dataclasses import fields, is_dataclass
from typing import Any, Literal, get_args, get_origin, get_type_hints

from tercet.interfaces import LogitScale, RetrievalModel, System, SystemSpec
from tercet.models.bfan import BFAN
from tercet.models.clip import CLIP
from tercet.models.heads import Heads
from tercet.models.scan import SCAN
from tercet.models.vse_infinity import VSEInfinity
from tercet.models.vsepp import VSEPP
from tercet.models.vsrn import VSRN
from tercet.models.xvlm import XVLM
from tercet.names import suggest
from tercet.plugins import from_entry_point, from_file, installed, is_file_name
from tercet.recipes import RECIPES, TRAINING

SIZE_SETTINGS = ("vocab_size", "layers", "caption_length")  # besides those that end in dim
MAX_SIZE = 10_000_000
ENTRY_POINTS = "tercet.models"
REQUIRED = ("settings", "dot_product", "encode_images", "encode_captions", "similarity", "state_dict")

SYSTEMS: dict[str, System] = {
    "heads": Heads,
    "vsepp": VSEPP,
    "vsrn": VSRN,
    "vse-infinity": VSEInfinity,
    "scan": SCAN,
    "bfan": BFAN,
    "xvlm": XVLM,
    "clip": CLIP,
}


def model_names() -> list[str]:
    """All names that `build` takes: systems, those of installed packages, and published recipes."""
    return [*SYSTEMS, *installed(ENTRY_POINTS), *RECIPES]


def preset(name: str) -> tuple[str, dict[str, Any]]:
    """System name and model settings of a published recipe, or of a system with its defaults."""
    if name in SYSTEMS or is_file_name(name) or (name in installed(ENTRY_POINTS) and name not in RECIPES):
        return name, {}
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
    if name in SYSTEMS or name in RECIPES:
        return TRAINING[training_round][name]
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
