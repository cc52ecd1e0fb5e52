"""Which encoders made the features of a folder, so that a model trained on them can read plain texts and pictures."""

from pathlib import Path
from typing import Any, NamedTuple

from tercet.data.lines import read_json

MANIFEST = "features.json"


class Encoders(NamedTuple):
    images: tuple[str | None, bool]
    """Name, None where it is not known, and whether it gave a grid."""
    captions: str | None


def encoders_of(path: Path) -> Encoders:
    """From the manifest that `tercet features` leaves; the captions of scenes are bags of words."""
    if str(path).startswith("scenes"):
        return Encoders((None, False), "bag-of-words")
    content = read_json(path / MANIFEST) if (path / MANIFEST).is_file() else {}
    images, texts = (_about(content, f"{side}_encoder") for side in ("image", "text"))
    grid = str(images.get("output", "")).startswith(("grid", "81 cells"))
    return Encoders((_name(images), grid), _name(texts))


def _about(content: Any, side: str) -> dict[str, Any]:
    about = content.get(side) if isinstance(content, dict) else None
    return about if isinstance(about, dict) else {}


def _name(about: dict[str, Any]) -> str | None:
    """Without the package it came in, which stands in brackets behind it."""
    name = about.get("encoder")
    return name.split(" (")[0] if isinstance(name, str) else None
