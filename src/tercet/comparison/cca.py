"""Regularised canonical correlation analysis in closed form, as heads: a linear baseline on frozen features.

With covariances C of the training pairs, C_xx^(-1/2) C_xy C_yy^(-1/2) = U diag(r) V^T. Images are projected to
sqrt(r) * U^T C_xx^(-1/2) (x - mean), captions likewise with V, so that before normalization the similarity of a pair is
the sum of its canonical coordinates' products, each weighted by its correlation r. C_xx and C_yy get a ridge: a share
of their mean variance.
"""

from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from tercet.data.dataset import PairedData, Source
from tercet.models.heads import Heads, HeadsSettings

RIDGES = (0.1, 1.0, 10.0)  # shares of the mean variance, from which validation chooses
DEFAULT_RIDGE = 1.0  # without validation
BLOCK = 4096  # captions read at once


class Covariances(NamedTuple):
    """Means and covariances over the training pairs, in float64."""

    image_mean: Float[np.ndarray, " image_dim"]
    caption_mean: Float[np.ndarray, " caption_dim"]
    images: Float[np.ndarray, "image_dim image_dim"]
    captions: Float[np.ndarray, "caption_dim caption_dim"]
    cross: Float[np.ndarray, "image_dim caption_dim"]


def covariances(data: PairedData) -> Covariances:
    """One pass over the pairs. Regions and words are averaged, which is exact for a linear projection."""
    pairs = data.pairs
    count, sums = len(pairs), None
    for block_of_pairs in pairs.split(BLOCK):
        x = _vectors(data.images, block_of_pairs[:, 0])
        y = _vectors(data.captions, block_of_pairs[:, 1])
        block = (x.sum(axis=0), y.sum(axis=0), x.T @ x, y.T @ y, x.T @ y)
        sums = block if sums is None else tuple(total + part for total, part in zip(sums, block, strict=True))
    assert sums is not None
    mean_x, mean_y, xx, yy, xy = (total / count for total in sums)
    cov_x, cov_y = xx - np.outer(mean_x, mean_x), yy - np.outer(mean_y, mean_y)
    return Covariances(mean_x, mean_y, cov_x, cov_y, xy - np.outer(mean_x, mean_y))


def _vectors(source: Source, items: Int[Tensor, " item"]) -> Float[np.ndarray, "item dim"]:
    features, lengths = source.take(items)
    features = features.double()
    if features.ndim == 3:
        lengths = torch.full((len(items),), features.shape[1]) if lengths is None else lengths
        real = torch.arange(features.shape[1]) < lengths[:, None]
        features = torch.where(real[..., None], features, 0).sum(dim=1) / lengths[:, None]
    return np.asarray(features.numpy())


def cca_heads(of: Covariances, ridge: float, embed_dim: int) -> Heads:
    """Heads whose weights are the solution."""
    white_x, white_y = _inverse_root(of.images, ridge), _inverse_root(of.captions, ridge)
    left, correlations, right = np.linalg.svd(white_x @ of.cross @ white_y, full_matrices=False)
    kept = min(embed_dim, len(correlations))
    weight = np.sqrt(correlations[:kept])
    image_weights = (white_x @ left[:, :kept] * weight).T
    caption_weights = (white_y @ right[:kept].T * weight).T
    model = Heads(HeadsSettings(len(of.image_mean), len(of.caption_mean), kept))
    with torch.no_grad():
        for head, weights, mean in (
            (model.image_head, image_weights, of.image_mean),
            (model.caption_head, caption_weights, of.caption_mean),
        ):
            head.linear.weight.copy_(torch.from_numpy(weights))
            head.linear.bias.copy_(torch.from_numpy(-weights @ mean))
    return model.eval()


def identity_heads(dim: int) -> Heads:
    """Heads that change nothing: on features of one dual encoder they are that encoder, zero-shot."""
    model = Heads(HeadsSettings(dim, dim, dim))
    with torch.no_grad():
        for head in (model.image_head, model.caption_head):
            head.linear.weight.copy_(torch.eye(dim))
            head.linear.bias.zero_()
    return model.eval()


def _inverse_root(covariance: Float[np.ndarray, "dim dim"], ridge: float) -> Float[np.ndarray, "dim dim"]:
    values, vectors = np.linalg.eigh(covariance)
    shift = ridge * max(float(values.mean()), np.finfo(np.float64).tiny)
    return np.asarray((vectors / np.sqrt(np.maximum(values, 0) + shift)) @ vectors.T)
