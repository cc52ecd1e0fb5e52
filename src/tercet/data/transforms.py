"""Image transforms: resizing, cropping and normalization, for models that read pixels."""

import hashlib
import math
from dataclasses import asdict, dataclass
from typing import Any, Literal

import numpy as np
import torch
from jaxtyping import Float, Int
from PIL import Image
from torch import Tensor

from tercet.data.image_io import ImageFiles, content_checksum
from tercet.hub import hub_options, transformers_for

Crop = Literal["none", "area", "half", "sides"]
"""Random crop of training images, with a horizontal flip half of the time: `area` crops 8 to 100 % of the area at an
aspect ratio of 3:4 to 4:3 (VSE++), `half` 50 to 100 % of the area (X-VLM), `sides` 60 to 100 % of both sides
(VSE-infinity)."""
MIN_AREA = {"area": 0.08, "half": 0.5}

IMAGENET_MEAN, IMAGENET_STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
CLIP_MEAN, CLIP_STD = (0.48145466, 0.4578275, 0.40821073), (0.26862954, 0.26130258, 0.27577711)
RESAMPLING = {2: "bilinear", 3: "bicubic"}  # codes of Pillow, as in preprocessor_config.json


@dataclass(frozen=True)
class TransformSettings:
    """Image preprocessing. The field names are part of checkpoints and checksums."""

    side: int = 224
    shorter_side: int | None = 256
    """Resize the shorter side to this, then center-crop; None resizes the image to the square, ignoring its aspect."""
    mean: tuple[float, float, float] = IMAGENET_MEAN
    std: tuple[float, float, float] = IMAGENET_STD
    resampling: Literal["bilinear", "bicubic"] = "bilinear"

    def __post_init__(self) -> None:
        if not isinstance(self.side, int) or self.side < 1 or min(self.std) <= 0:
            raise ValueError(f"expected side >= 1 and std > 0, got side {self.side} and std {self.std}")

    def prepare(self, image: Image.Image) -> Float[Tensor, "channel height width"]:
        return self._normalized(self._square(image))

    def cropped(
        self, image: Image.Image, crop: Crop, generator: torch.Generator
    ) -> Float[Tensor, "channel height width"]:
        """A random crop, resized to the square and flipped half of the time."""
        draws = torch.rand(5, generator=generator).tolist()
        width, height = _sides_crop(image.size, draws) if crop == "sides" else _area_crop(image.size, draws, crop)
        left, top = draws[2] * (image.width - width), draws[3] * (image.height - height)
        square = image.resize((self.side, self.side), self._resampling, box=(left, top, left + width, top + height))
        return self._normalized(square.transpose(Image.Transpose.FLIP_LEFT_RIGHT) if draws[4] < 0.5 else square)

    def _normalized(self, square: Image.Image) -> Float[Tensor, "channel height width"]:
        pixels = np.asarray(square, dtype=np.float32) / 255
        mean, std = np.array(self.mean, dtype=np.float32), np.array(self.std, dtype=np.float32)
        return torch.from_numpy((pixels - mean) / std).permute(2, 0, 1)

    @property
    def _resampling(self) -> Image.Resampling:
        return Image.Resampling.BILINEAR if self.resampling == "bilinear" else Image.Resampling.BICUBIC

    def _square(self, image: Image.Image) -> Image.Image:
        if self.shorter_side is None:
            return image.resize((self.side, self.side), self._resampling)
        # Truncated, as torchvision and transformers do: rounded, one photo in eight would be cropped a column off.
        width, height = (int(self.shorter_side * length / min(image.size)) for length in image.size)
        size = (max(self.side, width), max(self.side, height))
        left, top = (size[0] - self.side) // 2, (size[1] - self.side) // 2
        return image.resize(size, self._resampling).crop((left, top, left + self.side, top + self.side))


def _area_crop(size: tuple[int, int], draws: list[float], crop: Crop) -> tuple[float, float]:
    minimum = MIN_AREA[crop]
    area = size[0] * size[1] * (minimum + (1 - minimum) * draws[0])
    aspect = math.exp((2 * draws[1] - 1) * math.log(4 / 3))
    return min(float(size[0]), math.sqrt(area * aspect)), min(float(size[1]), math.sqrt(area / aspect))


def _sides_crop(size: tuple[int, int], draws: list[float]) -> tuple[float, float]:
    scale = 0.6 + 0.4 * draws[0]
    return scale * size[0], scale * size[1]


@dataclass(frozen=True)
class Pixels:
    """Image source of `PairedData`: decodes images on access."""

    image_files: ImageFiles
    settings: TransformSettings = TransformSettings()

    def __len__(self) -> int:
        return len(self.image_files)

    def take(self, items: Int[Tensor, " item"]) -> tuple[Float[Tensor, "item channel height width"], None]:
        return torch.stack([self.settings.prepare(self.image_files.open(item)) for item in items.tolist()]), None

    def cropped(self, items: Int[Tensor, " item"], crop: Crop, seed: int) -> Float[Tensor, "item channel height width"]:
        """Random crops; the same seed gives the same crops."""
        generator = torch.Generator().manual_seed(seed)
        return torch.stack(
            [self.settings.cropped(self.image_files.open(item), crop, generator) for item in items.tolist()]
        )

    def subset(self, items: Int[np.ndarray, " kept"]) -> "Pixels":
        return Pixels(ImageFiles([self.image_files.sources[item] for item in items]), self.settings)

    def checksum(self) -> str:
        digest = hashlib.sha256(repr(asdict(self.settings)).encode())
        for image in self.image_files:
            digest.update(content_checksum(image))
        return digest.hexdigest()


def pretrained_transform(name: str) -> TransformSettings:
    """The image preprocessing of a Hugging Face model, by name or local path."""
    AutoImageProcessor = transformers_for("pretrained models").AutoImageProcessor
    try:
        config: dict[str, Any] = AutoImageProcessor.from_pretrained(
            name, trust_remote_code=False, **hub_options(name)
        ).to_dict()
    except (OSError, ValueError) as error:
        raise ValueError(f"{name}: cannot read its image preprocessing configuration: {error}") from error
    size, crop = config.get("size") or {}, config.get("crop_size") or {}
    center_crop = bool(config.get("do_center_crop"))
    side = crop.get("height") if center_crop else size.get("height", size.get("shortest_edge"))
    resampling = RESAMPLING.get(int(config.get("resample", 3)))
    if not isinstance(side, int) or resampling is None or (center_crop and "shortest_edge" not in size):
        raise ValueError(
            f"{name}: unsupported image preprocessing: size {size}, crop_size {crop}, resample {config.get('resample')}"
        )
    mean, std = (tuple(float(x) for x in config[key]) for key in ("image_mean", "image_std"))
    return TransformSettings(side, size["shortest_edge"] if center_crop else None, mean, std, resampling)  # type: ignore[arg-type]


def squash_transform(side: int) -> TransformSettings:
    """Resize to a square, ignoring the aspect ratio, with the mean and std of CLIP, as in X-VLM."""
    return TransformSettings(side, None, CLIP_MEAN, CLIP_STD, "bicubic")
