"""open_clip: the objective as the loss of its training loop, in 3.x and in the tasks of its main branch.

import open_clip_train.main as program
program.create_loss = tercet.integrations.open_clip.create_loss("cir/sig-ms")
program.main(arguments)                                        # 3.x
task = CLIPTask(model, loss=Loss("cir/sig-ms"))                # main branch
"""

from collections.abc import Callable
from typing import Any

from torch import Tensor, nn

from tercet.objectives import ObjectiveLike, objective
from tercet.training.learned_scale import scalar_with_scale


class Loss(nn.Module):
    """Takes the place of `ClipLoss` and `SigLipLoss`; negatives come from all processes, with exact gradients.

    With `accum_freq` above 1 open_clip backpropagates the whole batch that many times, each time with the gradient of
    one part of the embeddings, but with the whole gradient of scale and bias: they would receive `accum_freq` times
    their gradient. Given the same `accum_freq`, this class hands on one part of it each time.
    """

    def __init__(self, which: ObjectiveLike, *, accum_freq: int = 1, **settings: Any) -> None:
        super().__init__()
        self.objective, self.accum_freq = objective(which, **settings), accum_freq
        if self.objective.learned:
            raise ValueError(f"{self.objective.name}: the scale of the model is learned; learn= is for tercet train")
        self.parts = nn.ModuleList(part for part in self.objective.states if isinstance(part, nn.Module))

    def forward(
        self,
        image_features: Tensor,
        text_features: Tensor,
        logit_scale: Tensor | None = None,
        logit_bias: Tensor | None = None,
        output_dict: bool = False,
        image_ids: Tensor | None = None,
        text_ids: Tensor | None = None,
    ) -> Tensor | dict[str, Tensor]:
        scale, bias = self._part_of_gradient(logit_scale), self._part_of_gradient(logit_bias)
        ids = {"image_ids": image_ids, "caption_ids": text_ids}
        loss = scalar_with_scale(self.objective, image_features, text_features, scale, bias, **ids)
        return {"contrastive_loss": loss} if output_dict else loss

    def _part_of_gradient(self, factor: Tensor | None) -> Tensor | None:
        """The same value; 1 / accum_freq of its gradient."""
        if factor is None or self.accum_freq == 1:
            return factor
        return factor.detach() + (factor - factor.detach()) / self.accum_freq


def create_loss(which: ObjectiveLike, **settings: Any) -> Callable[[Any], Loss]:
    """What takes the place of `open_clip_train.main.create_loss`: builds the loss from the arguments of the program."""
    return lambda args: Loss(which, accum_freq=args.accum_freq, **settings)
