"""CLIP (Radford et al., ICML 2021), SigLIP (Zhai et al., ICCV 2023) and dual encoders like them, of Hugging Face."""

from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from tercet import similarity
from tercet.contracts import Similarity
from tercet.models.backbone import config_of, pretrained
from tercet.models.norms import check_lengths, real_parts, unit

# What stands between the towers and the joint space.
HEADS = ("visual_projection", "text_projection", "vision_model.head", "text_model.head", "logit_scale", "logit_bias")

UNLIKE = ("siglip2", "flava")  # pictures of any shape; several encoders


@dataclass(frozen=True)
class CLIPSettings:
    clip: str | dict[str, Any]
    """A dual encoder of Hugging Face: a name or path, or a configuration."""
    trained: Literal["whole", "heads"] = "whole"
    """heads: the towers are frozen, their last projections are trained."""


class CLIP(nn.Module):
    """Its learned scale (and SigLIP's bias) take the place of an objective's temperature: see `scale_and_bias`."""

    dot_product = True
    learns_scale = True

    def __init__(self, settings: CLIPSettings) -> None:
        super().__init__()
        self.model: Any = pretrained(settings.clip)
        needed = ("get_text_features", "get_image_features", "logit_scale")
        kind = self.model.config.model_type
        if not all(hasattr(self.model, each) for each in needed) or kind in UNLIKE:
            raise ValueError(
                f"{kind} is no dual encoder such as CLIP or SigLIP, with square pictures and a learned scale"
            )
        self.settings = replace(settings, clip=config_of(self.model))
        if settings.trained == "heads":
            for name, parameter in self.model.named_parameters():
                parameter.requires_grad_(name.startswith(HEADS))

    def encode_images(
        self, images: Float[Tensor, "image channel height width"], lengths: Int[Tensor, " image"] | None = None
    ) -> Float[Tensor, "image joint"]:
        return unit(_pooled(self.model.get_image_features(pixel_values=images)))

    def encode_captions(
        self, token_ids: Int[Tensor, "caption word"], lengths: Int[Tensor, " caption"]
    ) -> Float[Tensor, "caption joint"]:
        check_lengths(lengths, token_ids, "captions")
        real = real_parts(lengths, token_ids.shape[1])
        if self.model.config.model_type.startswith("siglip"):
            # It reads its last place, and was trained on captions padded to their full length, with no mask.
            padded = token_ids.new_full((len(token_ids), self.places), self._pad)
            padded[:, : token_ids.shape[1]] = torch.where(real, token_ids, self._pad)[:, : self.places]
            return unit(_pooled(self.model.get_text_features(input_ids=padded)))
        ids = torch.where(real, token_ids, self._pad)
        return unit(_pooled(self.model.get_text_features(input_ids=ids, attention_mask=real.long())))

    def similarity(
        self, encoded_images: Float[Tensor, "image joint"], encoded_captions: Float[Tensor, "caption joint"]
    ) -> Similarity:
        """Cosines: scale and bias would not change an order."""
        return similarity.dot_products(encoded_images, encoded_captions)

    def scale_and_bias(self) -> tuple[Float[Tensor, ""], Float[Tensor, ""] | None]:
        """What the published loss does to cosines before it compares them: both are learned."""
        bias = getattr(self.model, "logit_bias", None)
        return self.model.logit_scale.exp().squeeze(), None if bias is None else bias.squeeze()

    @property
    def places(self) -> int:
        """Of a caption's tokens."""
        return int(self.model.config.text_config.max_position_embeddings)

    @property
    def _pad(self) -> int:
        return int(self.model.config.text_config.pad_token_id or 0)


def _pooled(output: Any) -> Tensor:
    """Newer versions of transformers give the states too."""
    found: Tensor = output if isinstance(output, Tensor) else output.pooler_output
    return found
