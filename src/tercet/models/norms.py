"""Length 1, and padding."""

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor


def unit(vectors: Float[Tensor, "item dim"]) -> Float[Tensor, "item dim"]:
    """Of length 1; a vector of zeros stays one."""
    return F.normalize(vectors, dim=-1)


def nearly_unit(vectors: Float[Tensor, "*item dim"]) -> Float[Tensor, "*item dim"]:
    """Divided by the length + 1e-8, as SCAN and VSE-infinity do; zeros stay zeros, with a finite gradient."""
    lengths = vectors.norm(dim=-1, keepdim=True)
    return vectors / torch.where(lengths > 0, lengths + 1e-8, 1)


def across_regions(regions: Float[Tensor, "image region dim"]) -> Float[Tensor, "image region dim"]:
    """Each channel of length 1 across the regions of an image: the axis that VSRN's program normalises.

    A slip of its authors, on which their published weights depend.
    """
    return F.normalize(regions, dim=1)


def real_parts(lengths: Int[Tensor, " item"], longest: int) -> Bool[Tensor, "item part"]:
    """Which parts are no padding."""
    return torch.arange(longest, device=lengths.device) < lengths[:, None]


def check_lengths(lengths: Int[Tensor, " item"], padded: Tensor, what: str) -> None:
    """One for each item, from 1 to the width: a wrong one would read padding, or nothing."""
    count, longest = padded.shape[:2]
    if lengths.shape != (count,) or lengths.is_floating_point() or lengths.is_complex():
        raise ValueError(f"lengths of {what} must be {count} whole numbers, got {tuple(lengths.shape)} {lengths.dtype}")
    if count and not 1 <= int(lengths.min()) <= int(lengths.max()) <= longest:
        raise ValueError(
            f"lengths of {what} must be from 1 to {longest}, got {int(lengths.min())} to {int(lengths.max())}"
        )


def full_lengths(parts: Float[Tensor, "item part dim"]) -> Int[Tensor, " item"]:
    """Where nothing is padded."""
    return torch.full((parts.shape[0],), parts.shape[1], device=parts.device)


def check_regions(images: Tensor, system: str) -> None:
    if images.ndim != 3:
        raise ValueError(f"{system} takes several regions an image, (image region dim), got {tuple(images.shape)}")
