"""Name -> system, and the hyper-parameters of the published recipes as named presets."""

from dataclasses import fields
from difflib import get_close_matches
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

SIZES = ("words", "layers", "caption_length")
LARGEST = 10_000_000


class System(NamedTuple):
    settings: type
    model: type[nn.Module]
    vision: str | None = None
    """The setting that names its vision model, where it can see pixels."""
    text: str | None = None
    """The setting that names its text model, where it can have one."""


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

_SCAN_I2T = {"attends": "i2t", "sharpness": 4.0}
_XVLM = {"vision": "microsoft/swin-base-patch4-window12-384", "text": "bert-base-uncased"}
# Small enough to learn `scenes` on a processor; it reads words of a vocabulary.
_XVLM_TINY = {
    "vision": {
        "model_type": "swin",
        "image_size": 64,
        "embed_dim": 24,
        "depths": [2, 2],
        "num_heads": [2, 4],
        "window_size": 8,
        "initializer_range": 0.1,  # 0.02 suits widths of hundreds
    },
    "text": {
        "model_type": "bert",
        "hidden_size": 64,
        "num_hidden_layers": 4,
        "num_attention_heads": 4,
        "intermediate_size": 128,
        "max_position_embeddings": 64,
        "initializer_range": 0.1,
    },
    "fusion_layer": 2,
    "joint_dim": 64,
}
_BERT = {"bert": "bert-base-uncased"}
# name -> system, settings that the paper names. What the data decides (sizes of vocabularies, features) is left open.
PRESETS: dict[str, tuple[str, dict[str, Any]]] = {
    "vsepp-f30k": ("vsepp", {"backbone": "microsoft/resnet-152"}),
    "vsepp-coco": ("vsepp", {"backbone": "microsoft/resnet-152"}),
    "vsepp-f30k-finetuned": ("vsepp", {"backbone": "microsoft/resnet-152", "train_backbone": True}),
    "vsepp-coco-finetuned": ("vsepp", {"backbone": "microsoft/resnet-152", "train_backbone": True}),
    "vsepp-precomp": ("vsepp", {"image_dim": 4096}),
    "vsepp-order": ("vsepp", {"image_dim": 4096, "measure": "order", "absolute": True}),
    "vsepp-study": ("vsepp", {"backbone": "microsoft/resnet-50"}),
    "vsepp-study-smooth-ap": ("vsepp", {"backbone": "microsoft/resnet-50"}),
    "vsrn-f30k": ("vsrn", {"variant": "f30k", "captioner": True}),
    "vsrn-coco": ("vsrn", {"variant": "coco", "captioner": True}),
    "vsrn-study-f30k": ("vsrn", {"variant": "f30k", "captioner": False}),
    "vsrn-study-f30k-smooth-ap": ("vsrn", {"variant": "f30k", "captioner": False}),
    "vsrn-study-coco": ("vsrn", {"variant": "both", "captioner": False}),
    "vsrn-study-coco-smooth-ap": ("vsrn", {"variant": "both", "captioner": False}),
    "vse-infinity-butd": ("vse-infinity", {"image_dim": 2048, **_BERT}),
    "vse-infinity-butd-bigru": ("vse-infinity", {"image_dim": 2048}),
    "vse-infinity-grid": ("vse-infinity", {"backbone": "microsoft/resnet-101", **_BERT}),
    "scan-t2i-f30k": ("scan", {}),
    "scan-t2i-coco": ("scan", {}),
    "scan-i2t-f30k": ("scan", _SCAN_I2T | {"pooling_sharpness": 5.0}),
    "scan-i2t-coco": ("scan", _SCAN_I2T | {"pooling_sharpness": 20.0}),
    "bfan-f30k": ("bfan", {}),
    "bfan-coco": ("bfan", {}),
    "bfan-prob-f30k": ("bfan", {"focus": "prob"}),
    "bfan-prob-coco": ("bfan", {"focus": "prob"}),
    "xvlm-f30k": ("xvlm", _XVLM),
    "xvlm-coco": ("xvlm", _XVLM),
    "xvlm-tiny": ("xvlm", _XVLM_TINY),
    "clip-b32": ("clip", {"clip": "openai/clip-vit-base-patch32"}),
    "siglip-b16": ("clip", {"clip": "google/siglip-base-patch16-224"}),
}


def preset(name: str) -> tuple[str, dict[str, Any]]:
    """System and settings of a published recipe, or of a system with its defaults."""
    if name in SYSTEMS:
        return name, {}
    if name not in PRESETS:
        known = [*SYSTEMS, *PRESETS]
        raise ValueError(f"no model {name!r}{_nearest(name, known)}; known: {', '.join(known)}")
    return PRESETS[name]


def build(name: str, **settings: Any) -> nn.Module:
    """A model by the name of a system or preset; named settings win over the preset's.

    >>> build("heads", image_dim=8, caption_dim=6).dot_product
    True
    """
    system, wanted = preset(name)
    known = [field.name for field in fields(SYSTEMS[system].settings)]
    for given in settings:
        if given not in known:
            raise ValueError(f"{system} has no setting {given!r}{_nearest(given, known)}; it has: {', '.join(known)}")
    wanted = wanted | settings
    if wanted.get("image_dim") is not None and settings.get("image_dim") is not None:
        wanted.pop("backbone", None)  # precomputed features take the place of a preset's backbone
    try:
        resolved = SYSTEMS[system].settings(**wanted)
    except TypeError as error:
        raise ValueError(f"{name}: {str(error).split('__init__() ')[-1]}") from error
    _check_choices(system, resolved)
    return SYSTEMS[system].model(resolved)


def _check_choices(system: str, settings: Any) -> None:
    """Settings that are one of a few words, and sizes."""
    kinds = get_type_hints(type(settings))
    for field in fields(settings):
        value, kind = getattr(settings, field.name), kinds[field.name]
        if get_origin(kind) is Literal and value not in get_args(kind):
            known = ", ".join(get_args(kind))
            raise ValueError(
                f"{system}: {field.name} is {known}, not {value!r}{_nearest(str(value), list(get_args(kind)))}"
            )
        if kind is bool and not isinstance(value, bool):
            raise ValueError(f"{system}: {field.name} is true or false, not {value!r}")
        if kind is float and not (isinstance(value, (int, float)) and 0 < value < float("inf")):
            raise ValueError(f"{system}: {field.name} must be a number above 0, got {value!r}")
        if kind is int and not isinstance(value, int):
            raise ValueError(f"{system}: {field.name} must be a whole number, got {value!r}")
        size = (field.name.endswith("dim") or field.name in SIZES) and value is not None
        if size and not (isinstance(value, int) and 1 <= value <= LARGEST):
            raise ValueError(f"{system}: {field.name} must be a whole number from 1 to {LARGEST:,}, got {value!r}")


def _nearest(name: str, known: list[str]) -> str:
    near = get_close_matches(name, known, n=1)
    return f" (did you mean {near[0]}?)" if near else ""
