"""Registry of systems: builds a model by the name of a system or of a published recipe."""

from dataclasses import fields
from typing import Any, Literal, NamedTuple, get_args, get_origin, get_type_hints

from torch import nn

from tercet.models.bfan import BFAN, BFANSettings
from tercet.models.clip import CLIP, CLIPSettings
from tercet.models.heads import Heads, HeadsSettings
from tercet.models.scan import SCAN, SCANSettings
from tercet.models.vse_infinity import VSEInfinity, VSEInfinitySettings
from tercet.models.vsepp import VSEPP, VSEPPSettings
from tercet.models.vsrn import VSRN, VSRNSettings
from tercet.models.xvlm import XVLM, XVLMSettings
from tercet.names import suggest
from tercet.recipes import RECIPES

SIZE_SETTINGS = ("vocab_size", "layers", "caption_length")  # besides those that end in dim
MAX_SIZE = 10_000_000


class System(NamedTuple):
    settings: type
    model: type[nn.Module]
    vision: str | None = None
    """Name of the setting with its Hugging Face vision model; None if it cannot take pixels."""
    text: str | None = None
    """Name of the setting with its Hugging Face text model; None if it has none."""


SYSTEMS = {
    "heads": System(HeadsSettings, Heads),
    "vsepp": System(VSEPPSettings, VSEPP, "backbone"),
    "vsrn": System(VSRNSettings, VSRN),
    "vse-infinity": System(VSEInfinitySettings, VSEInfinity, "backbone", "bert"),
    "scan": System(SCANSettings, SCAN),
    "bfan": System(BFANSettings, BFAN),
    "xvlm": System(XVLMSettings, XVLM, "vision", "text"),
    "clip": System(CLIPSettings, CLIP, "clip", "clip"),
}


def preset(name: str) -> tuple[str, dict[str, Any]]:
    """System name and model settings of a published recipe, or of a system with its defaults."""
    if name in SYSTEMS:
        return name, {}
    if name not in RECIPES:
        known = [*SYSTEMS, *RECIPES]
        raise ValueError(f"no model {name!r}{suggest(name, known)}; known: {', '.join(known)}")
    system, recipe = RECIPES[name]
    return system, recipe.model


def build(name: str, **settings: Any) -> nn.Module:
    """Build a model by the name of a system or preset; the given settings override the preset's.

    >>> build("heads", image_dim=8, caption_dim=6).dot_product
    True
    """
    system, preset_settings = preset(name)
    known = [field.name for field in fields(SYSTEMS[system].settings)]
    for key in settings:
        if key not in known:
            raise ValueError(f"{system} has no setting {key!r}{suggest(key, known)}; it has: {', '.join(known)}")
    merged = preset_settings | settings
    if settings.get("image_dim") is not None:
        merged.pop("backbone", None)  # precomputed features replace a preset's backbone
    try:
        resolved = SYSTEMS[system].settings(**merged)
    except TypeError as error:
        raise ValueError(f"{name}: {str(error).split('__init__() ')[-1]}") from error
    _check_values(system, resolved)
    return SYSTEMS[system].model(resolved)


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
