"""X-VLM (Zeng et al., ICML 2022) for retrieval: two towers retrieve candidates, a cross-encoder re-ranks them.

The published loss is NT-Xent with several positives at the learned temperature plus `matching_loss`, equally weighted.
"""

from dataclasses import dataclass, replace
from typing import Any, Literal, NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from tercet.interfaces import SystemSpec
from tercet.models.parts.backbone import Backbone, config_of, hugging_face_model
from tercet.models.parts.masking import check_lengths, checked_lengths, l2_normalize, length_mask
from tercet.types import PairMask, Similarity

MASK_VALUE = -10000.0  # added to the attention logits of padding, as published


@dataclass(frozen=True)
class XVLMSettings:
    vision: str | dict[str, Any]
    """Hugging Face vision model that returns patches (published: Swin): name, path or configuration."""
    text: str | dict[str, Any]
    """Hugging Face BERT: name, path or configuration."""
    fusion_layer: int = 6
    """First BERT layer (0-based) with cross attention to the image."""
    embed_dim: int = 256
    vocab_size: int | None = None
    """Size of a word vocabulary that replaces the tokenizer of `text`."""


class Negatives(NamedTuple):
    """Indices of the sampled negatives; -1 where there is none."""

    images: Int[Tensor, " caption"]
    captions: Int[Tensor, " image"]


class XVLM(nn.Module):
    """In training, transformers' Swin applies drop path only to attention, the authors' also to the MLP."""

    spec = SystemSpec(XVLMSettings, vision="vision", text="text", transform="squash", normalize_captions=True)
    dot_product = True

    def __init__(self, settings: XVLMSettings) -> None:
        super().__init__()
        if settings.vocab_size is not None and isinstance(settings.text, dict):
            settings = replace(settings, text=settings.text | {"vocab_size": settings.vocab_size})
        self.vision = Backbone(settings.vision, trained=True)
        _check_windows(self.vision.model.config)
        self.text = SplitBert(settings.text, settings.fusion_layer, self.vision.dim)
        self.settings = replace(settings, vision=self.vision.config(), text=self.text.config())
        self.image_head = nn.Linear(self.vision.dim, settings.embed_dim)
        self.caption_head = nn.Linear(self.text.dim, settings.embed_dim)
        self.match_head = nn.Sequential(
            nn.Linear(self.text.dim, 2 * self.text.dim),
            nn.LayerNorm(2 * self.text.dim),
            nn.GELU(),
            nn.Linear(2 * self.text.dim, 2),
        )
        self.temperature = nn.Parameter(torch.tensor(0.07))

    def image_tokens(
        self, pixels: Float[Tensor, "image channel height width"]
    ) -> Float[Tensor, "image token image_dim"]:
        """The mean of the patches, then the patches."""
        _check_pixels(pixels, self.vision.model.config)
        patches = self.vision.cells(pixels)
        return torch.cat([patches.mean(dim=1, keepdim=True), patches], dim=1)

    def word_states(
        self, token_ids: Int[Tensor, "caption word"], lengths: Int[Tensor, " caption"] | None = None
    ) -> Float[Tensor, "caption word dim"]:
        """Output of the lower, text-only layers of BERT."""
        return self.text.encode(token_ids, lengths)

    def image_features(self, tokens: Float[Tensor, "image token image_dim"]) -> Float[Tensor, "image embed_dim"]:
        return l2_normalize(self.image_head(tokens[:, 0]))

    def caption_features(self, states: Float[Tensor, "caption word dim"]) -> Float[Tensor, "caption embed_dim"]:
        return l2_normalize(self.caption_head(states[:, 0]))

    def encode_images(
        self, images: Float[Tensor, "image channel height width"], lengths: Int[Tensor, " image"] | None = None
    ) -> Float[Tensor, "image embed_dim"]:
        return self.image_features(self.image_tokens(images))

    def encode_captions(
        self, token_ids: Int[Tensor, "caption word"], lengths: Int[Tensor, " caption"] | None = None
    ) -> Float[Tensor, "caption embed_dim"]:
        return self.caption_features(self.word_states(token_ids, lengths))

    def similarity(
        self, encoded_images: Float[Tensor, "image embed_dim"], encoded_captions: Float[Tensor, "caption embed_dim"]
    ) -> Similarity:
        return encoded_images @ encoded_captions.T

    def scale_and_bias(self) -> tuple[Float[Tensor, ""], None]:
        """The inverse of the learned temperature, for objectives that have one; no bias."""
        return 1 / self.temperature, None

    @property
    def auxiliary_loss(self) -> Literal["matching"]:
        return "matching"

    def encode_with_auxiliary_loss(
        self,
        pixels: Float[Tensor, "image channel height width"],
        image_lengths: Int[Tensor, " image"] | None,
        token_ids: Int[Tensor, "caption word"],
        lengths: Int[Tensor, " caption"] | None,
        positives: PairMask,
    ) -> tuple[Float[Tensor, "image embed_dim"], Float[Tensor, "caption embed_dim"], Float[Tensor, ""]]:
        """Embeddings for the objective, and the matching loss on each caption paired with its image."""
        lengths = checked_lengths(lengths, token_ids, "captions")
        tokens, states = self.image_tokens(pixels), self.word_states(token_ids, lengths)
        images, captions = self.image_features(tokens), self.caption_features(states)
        owners = torch.arange(len(captions), device=captions.device)
        if len(images) != len(captions):
            owners = positives.long().argmax(dim=0)
        S = self.similarity(images[owners].detach(), captions.detach())
        negatives = draw_negatives(S, positives[owners], temperature=self.temperature)
        return images, captions, self.matching_loss(tokens[owners], states, lengths, negatives)

    def match(
        self,
        image_tokens: Float[Tensor, "pair token image_dim"],
        word_states: Float[Tensor, "pair word dim"],
        word_lengths: Int[Tensor, " pair"],
    ) -> Float[Tensor, " pair"]:
        """Matching logit of the pairs (image i, caption i), for re-ranking."""
        return self.matching_logits(image_tokens, word_states, word_lengths)[:, 1]

    def matching_logits(
        self,
        image_tokens: Float[Tensor, "pair token image_dim"],
        word_states: Float[Tensor, "pair word dim"],
        word_lengths: Int[Tensor, " pair"],
    ) -> Float[Tensor, "pair 2"]:
        """Logits of the classes "no match" and "match"."""
        return self.match_head(self.text.fuse(image_tokens, word_states, word_lengths)[:, 0])

    def matching_loss(
        self,
        image_tokens: Float[Tensor, "pair token image_dim"],
        word_states: Float[Tensor, "pair word dim"],
        word_lengths: Int[Tensor, " pair"],
        negatives: Negatives,
    ) -> Float[Tensor, ""]:
        """Cross entropy of match or no match, on each pair, each caption with a negative image and each image with a
        negative caption. The mean is over the existing combinations: three per pair, fewer without negatives.
        """
        pairs = torch.arange(len(image_tokens), device=image_tokens.device)
        with_image, with_caption = pairs[negatives.images >= 0], pairs[negatives.captions >= 0]
        images = torch.cat([pairs, negatives.images[with_image], with_caption])
        captions = torch.cat([pairs, with_image, negatives.captions[with_caption]])
        matched = (torch.arange(len(images), device=pairs.device) < len(pairs)).long()
        return F.cross_entropy(
            self.matching_logits(image_tokens[images], word_states[captions], word_lengths[captions]), matched
        )


def draw_negatives(
    similarity: Similarity,
    positives: PairMask,
    *,
    temperature: Float[Tensor, ""] | float,
    generator: torch.Generator | None = None,
) -> Negatives:
    """Sample a hard negative per caption and per image, by softmax(similarity / temperature) + 1e-5, as published.

    The softmax is over all candidates, positives are excluded afterwards. Items without a negative in the batch (all
    captions may be of one image, where the authors' code fails) get -1.
    """
    with torch.no_grad():
        scaled = similarity.float() / temperature
        return Negatives(images=_draw(scaled.T, positives.T, generator), captions=_draw(scaled, positives, generator))


def _draw(
    scaled: Float[Tensor, "anchor candidate"],
    positives: Bool[Tensor, "anchor candidate"],
    generator: torch.Generator | None,
) -> Int[Tensor, " anchor"]:
    weights = (scaled.softmax(dim=1) + 1e-5).masked_fill(positives, 0)
    has_negative = ~positives.all(dim=1)
    drawn = torch.full((len(weights),), -1, device=weights.device)
    if has_negative.any():
        drawn[has_negative] = torch.multinomial(weights[has_negative], 1, generator=generator).squeeze(1)
    return drawn


class SplitBert(nn.Module):
    """BERT split in two: the lower layers encode a caption, the upper layers fuse it with an image by cross attention.

    It reuses BERT's own modules, so that pretrained weights can be loaded; the cross attention is newly initialized.
    """

    def __init__(self, text: str | dict[str, Any], fusion_layer: int, image_dim: int) -> None:
        super().__init__()
        self.bert: Any = hugging_face_model(text)
        config = self.bert.config
        if config.model_type != "bert":
            raise ValueError(f"X-VLM's text model must be a BERT, got {config.model_type}")
        if not 1 <= fusion_layer < config.num_hidden_layers:
            raise ValueError(f"fusion_layer must be from 1 to {config.num_hidden_layers - 1}, got {fusion_layer}")
        self.bert.pooler = None
        self.fusion_layer = fusion_layer
        self.cross = nn.ModuleList(
            ImageAttention(config, image_dim) for _ in range(fusion_layer, config.num_hidden_layers)
        )

    @property
    def dim(self) -> int:
        return int(self.bert.config.hidden_size)

    def config(self) -> dict[str, Any]:
        return config_of(self.bert)

    def encode(
        self, token_ids: Int[Tensor, "caption word"], lengths: Int[Tensor, " caption"] | None = None
    ) -> Float[Tensor, "caption word dim"]:
        """Run the lower, text-only layers."""
        lengths = checked_lengths(lengths, token_ids, "captions")
        states = self.bert.embeddings(input_ids=token_ids)
        mask = _attention_mask(lengths, states)
        for layer in self.bert.encoder.layer[: self.fusion_layer]:
            states = _feed_forward(layer, layer.attention(states, mask)[0])
        return states

    def fuse(
        self,
        tokens: Float[Tensor, "pair token image_dim"],
        states: Float[Tensor, "pair word dim"],
        lengths: Int[Tensor, " pair"],
    ) -> Float[Tensor, "pair word dim"]:
        """Run the upper layers, with cross attention to the image tokens."""
        check_lengths(lengths, states, "captions")
        mask = _attention_mask(lengths, states)
        for layer, cross in zip(self.bert.encoder.layer[self.fusion_layer :], self.cross, strict=True):
            states = _feed_forward(layer, cross(layer.attention(states, mask)[0], tokens))
        return states


class ImageAttention(nn.Module):
    """Cross attention of words to the tokens of an image."""

    def __init__(self, config: Any, image_dim: int) -> None:
        super().__init__()
        dim = config.hidden_size
        self.heads = config.num_attention_heads
        self.query, self.out = nn.Linear(dim, dim), nn.Linear(dim, dim)
        self.key, self.value = nn.Linear(image_dim, dim), nn.Linear(image_dim, dim)
        for linear in (self.query, self.key, self.value, self.out):
            nn.init.normal_(linear.weight, std=config.initializer_range)
            nn.init.zeros_(linear.bias)
        self.norm = nn.LayerNorm(dim, eps=config.layer_norm_eps)
        self.attention_dropout = float(config.attention_probs_dropout_prob)
        self.dropout = nn.Dropout(config.hidden_dropout_prob)

    def forward(
        self, states: Float[Tensor, "pair word dim"], tokens: Float[Tensor, "pair token image_dim"]
    ) -> Float[Tensor, "pair word dim"]:
        queries, keys, values = (
            projected.unflatten(2, (self.heads, -1)).transpose(1, 2)  # pair head position dim
            for projected in (self.query(states), self.key(tokens), self.value(tokens))
        )
        dropout = self.attention_dropout if self.training else 0.0
        attended = F.scaled_dot_product_attention(queries, keys, values, dropout_p=dropout).transpose(1, 2).flatten(2)
        return self.norm(states + self.dropout(self.out(attended)))


def _feed_forward(layer: Any, states: Float[Tensor, "item word dim"]) -> Float[Tensor, "item word dim"]:
    """The feed-forward half of a BERT layer."""
    return layer.output(layer.intermediate(states), states)


def _attention_mask(
    lengths: Int[Tensor, " item"], states: Float[Tensor, "item word dim"]
) -> Float[Tensor, "item 1 1 word"]:
    """Additive attention mask of the padding."""
    padding = ~length_mask(lengths, states.shape[1])
    return padding[:, None, None, :].to(states.dtype) * MASK_VALUE


def _check_windows(config: Any) -> None:
    """Raise unless a Swin's last feature map holds a window; transformers has no smaller position table for it."""
    if config.model_type != "swin":
        return
    smallest = config.image_size // config.patch_size // 2 ** (len(config.depths) - 1)
    if smallest < config.window_size:
        raise ValueError(
            f"window_size {config.window_size} is larger than the Swin's last feature map, {smallest} x {smallest}, "
            f"at image_size {config.image_size}"
        )


def _check_pixels(pixels: Tensor, config: Any) -> None:
    """Refuse other image sizes: after smaller images, transformers' Swin keeps its windows small."""
    size = getattr(config, "image_size", None)
    if config.model_type == "swin" and pixels.shape[2:] != (size, size):
        raise ValueError(f"this X-VLM takes images of {size} x {size} pixels, got {tuple(pixels.shape)}")
