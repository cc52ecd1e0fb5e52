"""What each image contributes to a metric, so that two models can be compared image by image.

Captions of one image are not independent of each other; images are. So an image stands for itself and its captions:
the mean of what the images contribute is the metric.
"""

from collections.abc import Mapping

import numpy as np
from jaxtyping import Float

from tercet.evaluation.metrics import CUTOFFS

RECALLS = tuple(f"{side}_r{k}" for side in ("i2t", "t2i") for k in CUTOFFS)
METRICS = (*RECALLS, "rsum", "i2t_ar", "t2i_ar")


def contributions(ranks: Mapping[str, np.ndarray], metric: str = "rsum") -> Float[np.ndarray, " image"]:
    """From the arrays of `ranks.npz`: one number an image, in the order of the images.

    >>> ranks = {"image": [0, 0, 1], "caption": [0, 1, 2], "i2t_rank": [1, 2, 9], "t2i_rank": [1, 2, 7]}
    >>> contributions({name: np.array(array) for name, array in ranks.items()}, "i2t_r1")
    array([100.,   0.])
    """
    if metric not in METRICS:
        raise ValueError(f"{metric!r} has no share of each image; these have: {', '.join(METRICS)}")
    if metric == "rsum":
        return np.sum([contributions(ranks, name) for name in RECALLS], axis=0)
    side, _, name = metric.partition("_")
    if name == "ar":
        return np.mean([contributions(ranks, f"{side}_r{k}") for k in CUTOFFS], axis=0)
    cutoff = int(name[1:])
    images = int(_image(ranks, side).max()) + 1
    hits = _image_hits(ranks, cutoff, images) if side == "i2t" else _caption_hits(ranks, cutoff, images)
    return 100 * hits


def _image_hits(ranks: Mapping[str, np.ndarray], cutoff: int, images: int) -> np.ndarray:
    """1 where the best of an image's captions is within the cutoff."""
    image = _image(ranks, "i2t")
    asked = np.bincount(image, minlength=images) > 0
    hit = np.bincount(image, ranks["i2t_rank"] <= cutoff, minlength=images) > 0
    return hit * (images / asked.sum())


def _caption_hits(ranks: Mapping[str, np.ndarray], cutoff: int, images: int) -> np.ndarray:
    """How many of an image's captions find it within the cutoff, over the mean number of captions an image."""
    image = _image(ranks, "t2i")
    return np.bincount(image, ranks["t2i_rank"] <= cutoff, minlength=images) * (images / len(image))


def _image(ranks: Mapping[str, np.ndarray], side: str) -> np.ndarray:
    return ranks["image"] if "image" in ranks else ranks[f"{side}_image"]
