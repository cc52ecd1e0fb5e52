"""Size augmentation of VSE-infinity: parts of images and captions are left out while training, from a seed."""

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from tercet.data.text.tokens import Tokens

MASKED, REPLACED = 0.5, 0.6  # of the altered words: up to here hidden, up to here another token, the rest deleted


@dataclass(frozen=True)
class SizeAugmentation:
    """Shares that are altered; 0 turns either off. `grid` is the variant for cells of a CNN's map."""

    regions: float = 0.2
    words: float = 0.2
    grid: bool = False

    def __post_init__(self) -> None:
        for name in ("regions", "words"):
            if not 0 <= getattr(self, name) < 1:
                raise ValueError(f"{name} must be a share from 0 to below 1, got {getattr(self, name)}")


def drop_regions(
    images: Float[Tensor, "image region dim"],
    lengths: Int[Tensor, " image"] | None,
    how: SizeAugmentation,
    generator: torch.Generator,
) -> tuple[Float[Tensor, "image kept dim"], Int[Tensor, " image"]]:
    """Each region stays with probability 1 - share. On a grid, a share u x 0.2 of cells goes, and none if u <= 0.2.

    The published code may leave an image without any region; here one always stays.
    """
    count, regions = images.shape[:2]
    real = torch.arange(regions) < (torch.full((count,), regions) if lengths is None else lengths.cpu())[:, None]
    chance = torch.full((count, 1), how.regions)
    if how.grid:
        u = torch.rand(count, 1, generator=generator)
        chance = torch.where(u > how.regions, how.regions * u, torch.zeros(()))
    draw = torch.rand(count, regions, generator=generator)
    kept = (draw >= chance) & real
    luckiest = draw.masked_fill(~real, -1.0).argmax(dim=1)
    kept[torch.arange(count), luckiest] |= ~kept.any(dim=1)
    return _pushed_left(images, kept.to(images.device), 0)


def drop_words(
    tokens: Tokens, items: Int[Tensor, " caption"], share: float, generator: torch.Generator
) -> tuple[Int[Tensor, "caption kept"], Int[Tensor, " caption"]]:
    """Each word with probability `share` is altered, all its tokens alike: half are hidden, a tenth become other
    tokens, the rest go. Signs that are no words stay, and so does the first token of a caption that lost all.
    """
    numbers, lengths, words = tokens.padded(items)
    count, longest = numbers.shape
    most = int(words.max()) + 1 if words.numel() else 0
    altered = torch.rand(count, most + 1, generator=generator) < share
    altered[:, most] = False  # where words is -1
    fate = torch.rand(count, most + 1, generator=generator)
    at = torch.where(words >= 0, words, most)
    altered, fate = altered.gather(1, at), fate.gather(1, at)
    other = torch.randint(tokens.size, (count, longest), generator=generator)
    changed = torch.where(fate < MASKED, tokens.mask, other)
    numbers = torch.where(altered & (fate < REPLACED), changed, numbers)
    kept = (torch.arange(longest) < lengths[:, None]) & ~(altered & (fate >= REPLACED))
    kept[:, 0] |= ~kept.any(dim=1)
    return _pushed_left(numbers, kept, tokens.pad)


def _pushed_left(values: Tensor, kept: Bool[Tensor, "item part"], pad: int) -> tuple[Tensor, Int[Tensor, " item"]]:
    """What is kept moves to the front in its order; the rest is padding, cut to the longest."""
    lengths = kept.sum(dim=1)
    order = (~kept).byte().argsort(dim=1, stable=True)[:, : int(lengths.max())]
    index = order.reshape(*order.shape, *[1] * (values.ndim - 2)).expand(*order.shape, *values.shape[2:])
    moved = values.gather(1, index)
    beyond = torch.arange(order.shape[1], device=values.device) >= lengths[:, None]
    return moved.masked_fill(beyond.reshape(*beyond.shape, *[1] * (values.ndim - 2)), pad), lengths
