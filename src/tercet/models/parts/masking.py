"""Normalization, and masks and checks of lengths."""

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int, Shaped
from torch import Tensor


def l2_normalize(vectors: Float[Tensor, "item dim"]) -> Float[Tensor, "item dim"]:
    """L2-normalize; zero vectors stay zero."""
    return F.normalize(vectors, dim=-1)


def l2_normalize_eps(vectors: Float[Tensor, "*item dim"]) -> Float[Tensor, "*item dim"]:
    """Divide by the L2 norm + 1e-8, as SCAN and VSE-infinity do; zeros stay zeros, with a finite gradient."""
    norms = vectors.norm(dim=-1, keepdim=True)
    return vectors / torch.where(norms > 0, norms + 1e-8, 1)


def normalize_over_regions(regions: Float[Tensor, "image region dim"]) -> Float[Tensor, "image region dim"]:
    """L2-normalize each channel over the regions of an image: the axis that VSRN's released code normalizes.

    This is a mistake in that code, but the published weights depend on it.
    """
    return F.normalize(regions, dim=1)


def length_mask(lengths: Int[Tensor, " item"], longest: int) -> Bool[Tensor, "item element"]:
    """True where not padded."""
    return torch.arange(longest, device=lengths.device) < lengths[:, None]


def check_lengths(lengths: Int[Tensor, " item"], padded: Tensor, what: str) -> None:
    """Raise unless there is one length per item, from 1 to the padded width."""
    count, longest = padded.shape[:2]
    if lengths.shape != (count,) or lengths.is_floating_point() or lengths.is_complex():
        raise ValueError(f"lengths of {what} must be {count} whole numbers, got {tuple(lengths.shape)} {lengths.dtype}")
    if count and not 1 <= int(lengths.min()) <= int(lengths.max()) <= longest:
        raise ValueError(
            f"lengths of {what} must be from 1 to {longest}, got {int(lengths.min())} to {int(lengths.max())}"
        )


def checked_lengths(
    lengths: Int[Tensor, " item"] | None, padded: Shaped[Tensor, "item element *dim"], what: str
) -> Int[Tensor, " item"]:
    """The given lengths, checked; the full width if None (no padding)."""
    lengths = full_lengths(padded) if lengths is None else lengths
    check_lengths(lengths, padded, what)
    return lengths


def full_lengths(padded: Shaped[Tensor, "item element *dim"]) -> Int[Tensor, " item"]:
    """Lengths of items without padding."""
    return torch.full((padded.shape[0],), padded.shape[1], device=padded.device)


def check_regions(images: Tensor, system: str) -> None:
    """Raise unless images are sets of regions."""
    if images.ndim != 3:
        raise ValueError(f"{system} takes several regions per image, (image region dim), got {tuple(images.shape)}")
