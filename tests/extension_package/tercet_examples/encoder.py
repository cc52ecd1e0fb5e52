"""An image encoder: the pixels of a thumbnail. `Encoder(text=...)` would add one of texts."""

import numpy as np
import torch

from tercet.data.encoders.registry import Encoder


class Thumbnail:
    about = {"encoder": "thumbnail", "side": 8}  # noqa: RUF012 - what the features depend on

    def prepare(self, image):
        pixels = np.asarray(image.resize((8, 8)), dtype=np.float32) / 255
        return torch.from_numpy(pixels).permute(2, 0, 1)

    def encode(self, pixels):
        return pixels.flatten(1)


THUMBNAIL = Encoder(image=lambda grid: Thumbnail(), description="8 x 8 pixels")
