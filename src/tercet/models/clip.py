"""CLIP (Radford et al., ICML 2021), SigLIP (Zhai et al., ICCV 2023) and similar dual encoders from Hugging Face."""

from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from tercet.interfaces import ImageFeatures, SystemSpec, TextFeatures
from tercet.models.parts.backbone import config_of, hugging_face_model
from tercet.models.parts.masking import checked_lengths, l2_normalize, length_mask
from tercet.types import Similarity

# Parameters between the towers and the joint space.
HEADS = ("visual_projection", "text_projection", "vision_model.head", "text_model.head", "logit_scale", "logit_bias")

UNSUPPORTED = ("siglip2", "flava")  # images of any shape; several encoders


@dataclass(frozen=True)
class CLIPSettings:
    clip: str | dict[str, Any]
    """Hugging Face dual encoder: name, path or configuration."""
    trained: Literal["whole", "heads"] = "whole"
    """`heads` freezes the towers and trains their final projections; `whole` trains everything."""


class CLIP(nn.Module):
    """The learned scale (and SigLIP's bias) replace the objective's temperature: see `scale_and_bias`."""

    spec = SystemSpec(CLIPSettings, vision="clip", text="clip", transform="pretrained")
    dot_product = True

    def __init__(self, settings: CLIPSettings) -> None:
        super().__init__()
        self.model = hugging_face_model(settings.clip)
        model_type = self.model.config.model_type
        has_features = isinstance(self.model, ImageFeatures) and isinstance(self.model, TextFeatures)
        has_scale = "logit_scale" in dict(self.model.named_parameters())
        if not (has_features and has_scale) or model_type in UNSUPPORTED:
            raise ValueError(
                f"{model_type} is not a dual encoder like CLIP or SigLIP, with square images and a learned scale"
            )
        self.settings = replace(settings, clip=config_of(self.model))
        if settings.trained == "heads":
            for name, parameter in self.model.named_parameters():
                parameter.requires_grad_(name.startswith(HEADS))

    def encode_images(
        self, images: Float[Tensor, "image channel height width"], lengths: Int[Tensor, " image"] | None = None
    ) -> Float[Tensor, "image embed_dim"]:
        return l2_normalize(_pooled(self.model.get_image_features(pixel_values=images)))

    def encode_captions(
        self, token_ids: Int[Tensor, "caption word"], lengths: Int[Tensor, " caption"] | None = None
    ) -> Float[Tensor, "caption embed_dim"]:
        lengths = checked_lengths(lengths, token_ids, "captions")
        real = length_mask(lengths, token_ids.shape[1])
        if self.model.config.model_type.startswith("siglip"):
            # SigLIP pools the last position, and was trained on captions padded to the maximum length, without a mask.
            padded = token_ids.new_full((len(token_ids), self.max_positions), self._pad_id)
            padded[:, : token_ids.shape[1]] = torch.where(real, token_ids, self._pad_id)[:, : self.max_positions]
            return l2_normalize(_pooled(self.model.get_text_features(input_ids=padded)))
        ids = torch.where(real, token_ids, self._pad_id)
        return l2_normalize(_pooled(self.model.get_text_features(input_ids=ids, attention_mask=real.long())))

    def similarity(
        self, encoded_images: Float[Tensor, "image embed_dim"], encoded_captions: Float[Tensor, "caption embed_dim"]
    ) -> Similarity:
        """Cosines: scale and bias would not change the ranking."""
        return encoded_images @ encoded_captions.T

    def scale_and_bias(self) -> tuple[Float[Tensor, ""], Float[Tensor, ""] | None]:
        """The learned scale and bias that the published loss applies to cosines; the bias is None for CLIP."""
        bias = getattr(self.model, "logit_bias", None)
        return self.model.logit_scale.exp().squeeze(), None if bias is None else bias.squeeze()

    @property
    def max_positions(self) -> int:
        """Maximum caption length in tokens."""
        return int(self.model.config.text_config.max_position_embeddings)

    @property
    def _pad_id(self) -> int:
        return int(self.model.config.text_config.pad_token_id or 0)


def _pooled(output: Any) -> Tensor:
    """The pooled features; newer versions of transformers return them together with the states."""
    features: Tensor = output if isinstance(output, Tensor) else output.pooler_output
    return features
