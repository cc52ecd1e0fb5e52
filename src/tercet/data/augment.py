"""Size augmentation of VSE-infinity: seeded random dropping of regions and words during training."""

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from tercet.data.text.tokenized import TokenizedCaptions

# Cumulative shares of the altered words: masked below the first, replaced below the second, deleted above it.
MASKED, REPLACED = 0.5, 0.6


@dataclass(frozen=True)
class SizeAugmentation:
    """Drop rates; 0 turns one off. `grid` selects the variant for the cells of a CNN feature map."""

    regions: float = 0.2
    words: float = 0.2
    grid: bool = False

    def __post_init__(self) -> None:
        for name in ("regions", "words"):
            if not 0 <= getattr(self, name) < 1:
                raise ValueError(f"{name} must be in [0, 1), got {getattr(self, name)}")


def drop_regions(
    images: Float[Tensor, "image region dim"],
    lengths: Int[Tensor, " image"] | None,
    augmentation: SizeAugmentation,
    generator: torch.Generator,
) -> tuple[Float[Tensor, "image kept dim"], Int[Tensor, " image"]]:
    """Drop each region with probability p. On a grid, draw u per image: the drop rate is p * u, or 0 if u <= p.

    At least one region of each image is kept; the published code can drop all of them.
    """
    count, regions = images.shape[:2]
    valid = torch.arange(regions) < (torch.full((count,), regions) if lengths is None else lengths.cpu())[:, None]
    drop_rate = torch.full((count, 1), augmentation.regions)
    if augmentation.grid:
        u = torch.rand(count, 1, generator=generator)
        drop_rate = torch.where(u > augmentation.regions, augmentation.regions * u, torch.zeros(()))
    draw = torch.rand(count, regions, generator=generator)
    keep = (draw >= drop_rate) & valid
    highest_draw = draw.masked_fill(~valid, -1.0).argmax(dim=1)
    keep[torch.arange(count), highest_draw] |= ~keep.any(dim=1)
    return _compact(images, keep.to(images.device), 0)


def drop_words(
    tokens: TokenizedCaptions, items: Int[Tensor, " caption"], rate: float, generator: torch.Generator
) -> tuple[Int[Tensor, "caption kept"], Int[Tensor, " caption"]]:
    """Alter each word with probability `rate`: 50 % are masked, 10 % replaced by random tokens, 40 % deleted.

    All tokens of a word are treated alike. Special tokens are kept, and so is the first token of a caption that would
    lose all of its tokens.
    """
    token_ids, lengths, words = tokens.padded(items)
    count, max_length = token_ids.shape
    max_words = int(words.max()) + 1 if words.numel() else 0
    altered = torch.rand(count, max_words + 1, generator=generator) < rate
    altered[:, max_words] = False  # the column of special tokens and padding (word -1)
    draw = torch.rand(count, max_words + 1, generator=generator)
    column = torch.where(words >= 0, words, max_words)
    altered, draw = altered.gather(1, column), draw.gather(1, column)
    random_ids = torch.randint(tokens.vocab_size, (count, max_length), generator=generator)
    substitutes = torch.where(draw < MASKED, tokens.mask, random_ids)
    token_ids = torch.where(altered & (draw < REPLACED), substitutes, token_ids)
    keep = (torch.arange(max_length) < lengths[:, None]) & ~(altered & (draw >= REPLACED))
    keep[:, 0] |= ~keep.any(dim=1)
    return _compact(token_ids, keep, tokens.pad)


def _compact(values: Tensor, keep: Bool[Tensor, "item position"], pad: int) -> tuple[Tensor, Int[Tensor, " item"]]:
    """Move the kept values to the front, in order, and pad to the longest item. Returns values and lengths."""
    lengths = keep.sum(dim=1)
    order = (~keep).byte().argsort(dim=1, stable=True)[:, : int(lengths.max())]
    index = order.reshape(*order.shape, *[1] * (values.ndim - 2)).expand(*order.shape, *values.shape[2:])
    moved = values.gather(1, index)
    padding = torch.arange(order.shape[1], device=values.device) >= lengths[:, None]
    return moved.masked_fill(padding.reshape(*padding.shape, *[1] * (values.ndim - 2)), pad), lengths
