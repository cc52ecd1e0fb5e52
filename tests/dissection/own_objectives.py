"""Objectives that make a model ill: slips that people make."""

import torch


def pull_only(S, positives):
    """The negatives were forgotten."""
    return -positives.float()


def one_sign_wrong(S, positives):
    """NT-Xent of images, and that of captions with the wrong sign before it."""
    return _cross_entropy(S / 0.1, positives) - 0.5 * _cross_entropy(S.T / 0.1, positives.T)


def _cross_entropy(z, positives):
    own = positives.to(z.dtype)
    return -(torch.log_softmax(z, dim=1) * own).sum(dim=1).div(own.sum(dim=1).clamp(min=1)).mean()
