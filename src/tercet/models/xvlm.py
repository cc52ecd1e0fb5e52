"""X-VLM (Zeng et al., ICML 2022), for retrieval: two towers find candidates, a matcher looks at them closely.

Published training adds NT-Xent with several positives, at the learned temperature, and `matching_loss`, in equal parts.
"""

from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from tercet import similarity
from tercet.contracts import PairMask, Similarity
from tercet.models.backbone import Backbone, config_of, pretrained
from tercet.models.norms import check_lengths, real_parts, unit

MASKED = -10000.0  # added to what attention must not see, as published


@dataclass(frozen=True)
class XVLMSettings:
    vision: str | dict[str, Any]
    """A vision model of Hugging Face that gives patches, a Swin as published: a name or path, or a configuration."""
    text: str | dict[str, Any]
    """A BERT of Hugging Face: a name or path, or a configuration."""
    fusion_layer: int = 6
    """The layers of BERT from this one on, counted from 0, read the caption again beside the image."""
    joint_dim: int = 256
    words: int | None = None
    """Size of a vocabulary of words, in place of the tokenizer that belongs to `text`."""


class Negatives(NamedTuple):
    """Rows to take as negatives; -1 where there is none."""

    images: Int[Tensor, " caption"]
    captions: Int[Tensor, " image"]


class XVLM(nn.Module):
    """In training, transformers' Swin drops paths of attention alone, the authors' also those of the layer after it."""

    dot_product = True
    learns_scale = True

    def __init__(self, settings: XVLMSettings) -> None:
        super().__init__()
        if settings.words is not None and isinstance(settings.text, dict):
            settings = replace(settings, text=settings.text | {"vocab_size": settings.words})
        self.vision = Backbone(settings.vision, trained=True)
        _check_windows(self.vision.model.config)
        self.text = SplitBert(settings.text, settings.fusion_layer, self.vision.dim)
        self.settings = replace(settings, vision=self.vision.config(), text=self.text.config())
        self.image_head = nn.Linear(self.vision.dim, settings.joint_dim)
        self.caption_head = nn.Linear(self.text.dim, settings.joint_dim)
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
        """Their mean, then the patches."""
        _check_pixels(pixels, self.vision.model.config)
        patches = self.vision.cells(pixels)
        return torch.cat([patches.mean(dim=1, keepdim=True), patches], dim=1)

    def word_states(
        self, token_ids: Int[Tensor, "caption word"], lengths: Int[Tensor, " caption"]
    ) -> Float[Tensor, "caption word dim"]:
        """What the captions alone say: the lower layers of BERT."""
        return self.text.read(token_ids, lengths)

    def image_features(self, tokens: Float[Tensor, "image token image_dim"]) -> Float[Tensor, "image joint"]:
        return unit(self.image_head(tokens[:, 0]))

    def caption_features(self, states: Float[Tensor, "caption word dim"]) -> Float[Tensor, "caption joint"]:
        return unit(self.caption_head(states[:, 0]))

    def encode_images(
        self, images: Float[Tensor, "image channel height width"], lengths: Int[Tensor, " image"] | None = None
    ) -> Float[Tensor, "image joint"]:
        return self.image_features(self.image_tokens(images))

    def encode_captions(
        self, token_ids: Int[Tensor, "caption word"], lengths: Int[Tensor, " caption"]
    ) -> Float[Tensor, "caption joint"]:
        return self.caption_features(self.word_states(token_ids, lengths))

    def similarity(
        self, encoded_images: Float[Tensor, "image joint"], encoded_captions: Float[Tensor, "caption joint"]
    ) -> Similarity:
        return similarity.dot_products(encoded_images, encoded_captions)

    def scale_and_bias(self) -> tuple[Float[Tensor, ""], None]:
        """The temperature, for objectives that have one."""
        return 1 / self.temperature, None

    def encode_and_match(
        self,
        pixels: Float[Tensor, "image channel height width"],
        token_ids: Int[Tensor, "caption word"],
        lengths: Int[Tensor, " caption"],
        positives: PairMask,
    ) -> tuple[Float[Tensor, "image joint"], Float[Tensor, "caption joint"], Float[Tensor, ""]]:
        """Both sides for the objective, and the loss of matching them; every caption makes a pair with its image."""
        tokens, states = self.image_tokens(pixels), self.word_states(token_ids, lengths)
        images, captions = self.image_features(tokens), self.caption_features(states)
        rows = torch.arange(len(captions), device=captions.device)
        if len(images) != len(captions):
            rows = positives.long().argmax(dim=0)
        sides = images[rows].detach(), captions.detach()
        negatives = draw_negatives(self.similarity(*sides), positives[rows], temperature=self.temperature)
        return images, captions, self.matching_loss(tokens[rows], states, lengths, negatives)

    def match(
        self,
        image_tokens: Float[Tensor, "pair token image_dim"],
        word_states: Float[Tensor, "pair word dim"],
        word_lengths: Int[Tensor, " pair"],
    ) -> Float[Tensor, " pair"]:
        """How well an image and a caption match, seen together; row i of both is a pair. For re-ranking."""
        return self.matching(image_tokens, word_states, word_lengths)[:, 1]

    def matching(
        self,
        image_tokens: Float[Tensor, "pair token image_dim"],
        word_states: Float[Tensor, "pair word dim"],
        word_lengths: Int[Tensor, " pair"],
    ) -> Float[Tensor, "pair 2"]:
        """Before the softmax: that they do not match, and that they do."""
        return self.match_head(self.text.read_beside(image_tokens, word_states, word_lengths)[:, 0])

    def matching_loss(
        self,
        image_tokens: Float[Tensor, "pair token image_dim"],
        word_states: Float[Tensor, "pair word dim"],
        word_lengths: Int[Tensor, " pair"],
        negatives: Negatives,
    ) -> Float[Tensor, ""]:
        """Cross entropy of match or no match: each pair, each caption with a negative image, each image with a negative
        caption. The mean is over the combinations that exist, three a pair unless some have no negative.
        """
        pairs = torch.arange(len(image_tokens), device=image_tokens.device)
        captions_with, images_with = pairs[negatives.images >= 0], pairs[negatives.captions >= 0]
        images = torch.cat([pairs, negatives.images[captions_with], images_with])
        captions = torch.cat([pairs, captions_with, negatives.captions[images_with]])
        matched = (torch.arange(len(images), device=pairs.device) < len(pairs)).long()
        return F.cross_entropy(
            self.matching(image_tokens[images], word_states[captions], word_lengths[captions]), matched
        )


def draw_negatives(
    similarity: Similarity,
    positives: PairMask,
    *,
    temperature: Float[Tensor, ""] | float,
    generator: torch.Generator | None = None,
) -> Negatives:
    """A hard negative for each caption and each image, drawn by softmax(similarity / temperature) + 1e-5, as published.

    The softmax is over all candidates, positives are taken out afterwards. Who has no negative in the batch (all of it
    may be of one image, where the authors' program fails) gets -1.
    """
    with torch.no_grad():
        sharpened = similarity.float() / temperature
        return Negatives(
            images=_drawn(sharpened.T, positives.T, generator), captions=_drawn(sharpened, positives, generator)
        )


def _drawn(
    sharpened: Float[Tensor, "anchor candidate"],
    positives: Bool[Tensor, "anchor candidate"],
    generator: torch.Generator | None,
) -> Int[Tensor, " anchor"]:
    weights = (sharpened.softmax(dim=1) + 1e-5).masked_fill(positives, 0)
    possible = ~positives.all(dim=1)
    drawn = torch.full((len(weights),), -1, device=weights.device)
    if possible.any():
        drawn[possible] = torch.multinomial(weights[possible], 1, generator=generator).squeeze(1)
    return drawn


class SplitBert(nn.Module):
    """BERT cut in two: the lower layers read a caption, the upper ones read it again beside an image.

    Made of BERT's own parts, so that a published one can be the start; attention to the image is new.
    """

    def __init__(self, text: str | dict[str, Any], fusion_layer: int, image_dim: int) -> None:
        super().__init__()
        self.bert: Any = pretrained(text)
        config = self.bert.config
        if config.model_type != "bert":
            raise ValueError(f"X-VLM's text model is a BERT, not {config.model_type}")
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

    def read(
        self, token_ids: Int[Tensor, "caption word"], lengths: Int[Tensor, " caption"]
    ) -> Float[Tensor, "caption word dim"]:
        check_lengths(lengths, token_ids, "captions")
        states = self.bert.embeddings(input_ids=token_ids)
        hidden = _hidden(lengths, states)
        for layer in self.bert.encoder.layer[: self.fusion_layer]:
            states = _fed_forward(layer, layer.attention(states, hidden)[0])
        return states

    def read_beside(
        self,
        tokens: Float[Tensor, "pair token image_dim"],
        states: Float[Tensor, "pair word dim"],
        lengths: Int[Tensor, " pair"],
    ) -> Float[Tensor, "pair word dim"]:
        check_lengths(lengths, states, "captions")
        hidden = _hidden(lengths, states)
        for layer, cross in zip(self.bert.encoder.layer[self.fusion_layer :], self.cross, strict=True):
            states = _fed_forward(layer, cross(layer.attention(states, hidden)[0], tokens))
        return states


class ImageAttention(nn.Module):
    """Words look at the tokens of an image."""

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
            each.unflatten(2, (self.heads, -1)).transpose(1, 2)  # pair head part dim
            for each in (self.query(states), self.key(tokens), self.value(tokens))
        )
        dropout = self.attention_dropout if self.training else 0.0
        seen = F.scaled_dot_product_attention(queries, keys, values, dropout_p=dropout).transpose(1, 2).flatten(2)
        return self.norm(states + self.dropout(self.out(seen)))


def _fed_forward(layer: Any, states: Float[Tensor, "item word dim"]) -> Float[Tensor, "item word dim"]:
    """The second half of a layer of BERT."""
    return layer.output(layer.intermediate(states), states)


def _hidden(lengths: Int[Tensor, " item"], states: Float[Tensor, "item word dim"]) -> Float[Tensor, "item 1 1 word"]:
    """What attention adds so that nobody looks at padding."""
    padding = ~real_parts(lengths, states.shape[1])
    return padding[:, None, None, :].to(states.dtype) * MASKED


def _check_windows(config: Any) -> None:
    """A Swin's last map must hold a window: transformers has no smaller table of positions for it."""
    if config.model_type != "swin":
        return
    smallest = config.image_size // config.patch_size // 2 ** (len(config.depths) - 1)
    if smallest < config.window_size:
        raise ValueError(
            f"windows of {config.window_size} do not fit into the Swin's last map of {smallest} x {smallest}: "
            f"image_size is {config.image_size}"
        )


def _check_pixels(pixels: Tensor, config: Any) -> None:
    """A Swin that has seen smaller images once keeps its windows small: they are not let in."""
    side = getattr(config, "image_size", None)
    if config.model_type == "swin" and pixels.shape[2:] != (side, side):
        raise ValueError(f"this X-VLM takes images of {side} x {side} pixels, got {tuple(pixels.shape)}")
