"""How a published model wants its pictures, read off the description that lies beside its weights."""

from typing import Any

from tercet.data.pixels import CLIP_MEAN, CLIP_STD, PixelSettings

RESAMPLING = {2: "bilinear", 3: "bicubic"}


def pretrained_pixels(name: str) -> PixelSettings:
    """Of the Hugging Face model of that name or local path."""
    try:
        from transformers import AutoImageProcessor
    except ImportError as error:
        raise ValueError("pretrained models need transformers: pip install 'tercet[hf]'") from error
    try:
        found: dict[str, Any] = AutoImageProcessor.from_pretrained(name, trust_remote_code=False).to_dict()
    except (OSError, ValueError) as error:
        raise ValueError(f"{name}: how it wants its pictures cannot be read: {error}") from error
    size, crop = found.get("size") or {}, found.get("crop_size") or {}
    cut = bool(found.get("do_center_crop"))
    side = crop.get("height") if cut else size.get("height", size.get("shortest_edge"))
    resampling = RESAMPLING.get(int(found.get("resample", 3)))
    if not isinstance(side, int) or resampling is None or (cut and "shortest_edge" not in size):
        raise ValueError(f"{name}: pictures of size {size}, cut to {crop}, cannot be made here")
    mean, std = (tuple(float(x) for x in found[key]) for key in ("image_mean", "image_std"))
    return PixelSettings(side, size["shortest_edge"] if cut else None, mean, std, resampling)  # type: ignore[arg-type]


def warped_pixels(side: int) -> PixelSettings:
    """Whole pictures as squares, in the colours of CLIP: X-VLM's."""
    return PixelSettings(side, None, CLIP_MEAN, CLIP_STD, "bicubic")
