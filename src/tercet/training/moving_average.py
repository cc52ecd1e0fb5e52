"""A moving average of a model's weights, which encodes the entries of a queue (the momentum encoder of MoCo)."""

import copy

import torch
from jaxtyping import Float
from torch import Tensor

from tercet.interfaces import RetrievalModel
from tercet.types import Batch


class MovingAverage:
    """average = momentum * average + (1 - momentum) * weights; buffers are those of the model."""

    def __init__(self, model: RetrievalModel, momentum: float) -> None:
        self.momentum, self.model = momentum, copy.deepcopy(model)
        self.model.eval()
        for parameter in self.model.parameters():
            parameter.requires_grad_(False)

    @torch.no_grad()
    def update(self, model: RetrievalModel) -> None:
        parameters = {parameter.data_ptr() for _, parameter in model.named_parameters()}
        current, averaged = model.state_dict(), set()
        for name, average in self.model.state_dict().items():
            is_parameter = current[name].data_ptr() in parameters
            if is_parameter and average.data_ptr() in averaged:
                continue  # a tied parameter has several names
            averaged.add(average.data_ptr())
            if is_parameter:
                average.lerp_(current[name], 1 - self.momentum)
            else:
                average.copy_(current[name])

    @torch.no_grad()
    def encode(self, batch: Batch) -> tuple[Float[Tensor, "image dim"], Float[Tensor, "caption dim"]]:
        images = self.model.encode_images(batch.images, batch.image_lengths)
        return images, self.model.encode_captions(batch.captions, batch.caption_lengths)
