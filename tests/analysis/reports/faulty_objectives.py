"""Incorrect objectives that make a model faulty: typical mistakes."""

import torch


def pull_only(S, positives):
    """Without negatives."""
    return -positives.float()


def one_sign_wrong(S, positives):
    """NT-Xent with the wrong sign for the caption direction."""
    return _cross_entropy(S / 0.1, positives) - 0.5 * _cross_entropy(S.T / 0.1, positives.T)


def _cross_entropy(z, positives):
    own = positives.to(z.dtype)
    return -(torch.log_softmax(z, dim=1) * own).sum(dim=1).div(own.sum(dim=1).clamp(min=1)).mean()
