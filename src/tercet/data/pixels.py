"""Pictures as pixels, for models that see them."""

import hashlib
import math
from dataclasses import asdict, dataclass
from typing import Literal

import numpy as np
import torch
from jaxtyping import Float, Int
from PIL import Image
from torch import Tensor

from tercet.data.pictures import Pictures

Crop = Literal["none", "area", "half", "sides"]
"""Of training pictures, mirrored half of the time: `area` cuts 8 to 100 % of the area at an aspect of 3:4 to 4:3
(VSE++), `half` 50 to 100 % of it (X-VLM), `sides` 60 to 100 % of both sides (VSE-infinity)."""
SMALLEST_AREA = {"area": 0.08, "half": 0.5}

IMAGENET_MEAN, IMAGENET_STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
CLIP_MEAN, CLIP_STD = (0.48145466, 0.4578275, 0.40821073), (0.26862954, 0.26130258, 0.27577711)


@dataclass(frozen=True)
class PixelSettings:
    """How a picture becomes numbers."""

    side: int = 224
    shorter_side: int | None = 256
    """Shrunk to this, then cut to the middle square; None warps the whole picture to the square."""
    mean: tuple[float, float, float] = IMAGENET_MEAN
    std: tuple[float, float, float] = IMAGENET_STD
    resampling: Literal["bilinear", "bicubic"] = "bilinear"

    def __post_init__(self) -> None:
        if not isinstance(self.side, int) or self.side < 1 or min(self.std) <= 0:
            raise ValueError(f"expected a side of at least 1 and deviations above 0, got {self.side} and {self.std}")

    def prepare(self, picture: Image.Image) -> Float[Tensor, "channel height width"]:
        return self._numbers(self._square(picture))

    def cropped(
        self, picture: Image.Image, crop: Crop, generator: torch.Generator
    ) -> Float[Tensor, "channel height width"]:
        """A random part of it, warped to the square."""
        draws = torch.rand(5, generator=generator).tolist()
        width, height = _sides(picture.size, draws) if crop == "sides" else _area(picture.size, draws, crop)
        left, top = draws[2] * (picture.width - width), draws[3] * (picture.height - height)
        part = picture.resize((self.side, self.side), self._resampling, box=(left, top, left + width, top + height))
        return self._numbers(part.transpose(Image.Transpose.FLIP_LEFT_RIGHT) if draws[4] < 0.5 else part)

    def _numbers(self, square: Image.Image) -> Float[Tensor, "channel height width"]:
        pixels = np.asarray(square, dtype=np.float32) / 255
        mean, std = np.array(self.mean, dtype=np.float32), np.array(self.std, dtype=np.float32)
        return torch.from_numpy((pixels - mean) / std).permute(2, 0, 1)

    @property
    def _resampling(self) -> Image.Resampling:
        return Image.Resampling.BILINEAR if self.resampling == "bilinear" else Image.Resampling.BICUBIC

    def _square(self, picture: Image.Image) -> Image.Image:
        if self.shorter_side is None:
            return picture.resize((self.side, self.side), self._resampling)
        scale = self.shorter_side / min(picture.size)
        size = (max(self.side, round(picture.width * scale)), max(self.side, round(picture.height * scale)))
        left, top = (size[0] - self.side) // 2, (size[1] - self.side) // 2
        return picture.resize(size, self._resampling).crop((left, top, left + self.side, top + self.side))


def _area(size: tuple[int, int], draws: list[float], crop: Crop) -> tuple[float, float]:
    least = SMALLEST_AREA[crop]
    area = size[0] * size[1] * (least + (1 - least) * draws[0])
    aspect = math.exp((2 * draws[1] - 1) * math.log(4 / 3))
    return min(float(size[0]), math.sqrt(area * aspect)), min(float(size[1]), math.sqrt(area / aspect))


def _sides(size: tuple[int, int], draws: list[float]) -> tuple[float, float]:
    share = 0.6 + 0.4 * draws[0]
    return share * size[0], share * size[1]


@dataclass(frozen=True)
class Pixels:
    """A side of paired data: pictures decoded when they are asked for."""

    pictures: Pictures
    settings: PixelSettings = PixelSettings()

    def __len__(self) -> int:
        return len(self.pictures)

    def take(self, items: Int[Tensor, " item"]) -> tuple[Float[Tensor, "item channel height width"], None]:
        return torch.stack([self.settings.prepare(self.pictures.open(item)) for item in items.tolist()]), None

    def cropped(self, items: Int[Tensor, " item"], crop: Crop, seed: int) -> Float[Tensor, "item channel height width"]:
        """The same parts for the same seed."""
        generator = torch.Generator().manual_seed(seed)
        return torch.stack(
            [self.settings.cropped(self.pictures.open(item), crop, generator) for item in items.tolist()]
        )

    def only(self, items: Int[np.ndarray, " kept"]) -> "Pixels":
        return Pixels(Pictures([self.pictures.sources[item] for item in items]), self.settings)

    def checksum(self) -> str:
        digest = hashlib.sha256(repr(asdict(self.settings)).encode())
        for picture in self.pictures:
            digest.update(hashlib.sha256(picture.content()).digest())
        return digest.hexdigest()
