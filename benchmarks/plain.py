"""Baselines: the objectives as plain autograd formulas on the whole S, as their authors wrote them.

Square batches, one caption per image, only the diagonal is positive. GOAL has no loss for most cells; its plain form is
the surrogate sum of (T P-) S_n - (T P+) S_p with detached weights, of which autograd gives the same gradient.
"""

import torch
import torch.nn.functional as F


def hinge(images, captions, margin=0.2, hardest=False):
    similarity = images @ captions.T
    positive = similarity.diag()[:, None]
    mask = torch.eye(len(similarity)) > 0.5
    for_images = (margin + similarity - positive).clamp(min=0).masked_fill(mask, 0)
    for_captions = (margin + similarity - positive.T).clamp(min=0).masked_fill(mask, 0)
    if hardest:
        return for_images.max(1)[0].sum() + for_captions.max(0)[0].sum()
    return for_images.sum() + for_captions.sum()


def nt_xent(images, captions, temperature=0.1):
    similarity = images @ captions.T / temperature
    return -0.5 * (similarity.log_softmax(1).diag().mean() + similarity.log_softmax(0).diag().mean())


def sigmoid(images, captions, temperature=0.1, bias=-10.0):
    similarity = images @ captions.T / temperature + bias
    targets = 2 * torch.eye(len(similarity)) - 1
    return -F.logsigmoid(targets * similarity).sum() / len(similarity)


def smooth_ap(images, captions, temperature=0.01):
    """Cubic: compares every candidate with every candidate, for every query."""
    similarity = images @ captions.T
    captions_per_image = len(captions) // len(images)
    positives = torch.eye(len(images)).repeat_interleave(captions_per_image, dim=1)

    def one_minus_ap(s, positives):
        difference = s[:, None, :] - s[:, :, None]  # query candidate candidate
        above = torch.sigmoid((difference / temperature).clamp(-50, 50)) * (1 - torch.eye(s.shape[1]))
        rank = 1 + above.sum(-1)
        among_positives = (1 + (above * positives[:, None, :]).sum(-1)) * positives
        return (1 - (among_positives / rank).sum(-1) / positives.sum(-1)).mean()

    return 0.5 * (one_minus_ap(similarity, positives) + one_minus_ap(similarity.T, positives.T))


def goal(images, captions, T, P, margin=0.2, tau=10.0, alpha=2.0, beta=10.0, lam=0.5, slack=0.1):
    similarity = images @ captions.T
    mask = torch.eye(len(similarity)) > 0.5
    total = 0.0
    for s in (similarity, similarity.T):
        s_p = s.diag()
        negatives = s.masked_fill(mask, -1.0)
        s_n, hardest = negatives.max(1)
        p, n = s_p.detach(), s_n.detach()
        weight = {
            "con": lambda p, n: (margin + n - p > 0).float(),
            "nca": lambda p, n: 1 / (1 + torch.exp(tau * (p - n))),
            "cir": lambda p, n: 1 / (1 + torch.exp(tau * (p * (2 - p) - n**2))),
        }[T](p, n)
        pull, push = _pair_weights(P, p, n, negatives.detach(), hardest, mask, alpha, beta, lam, slack)
        total = total + (weight * push * s_n - weight * pull * s_p).sum()
    return total


def _pair_weights(P, p, n, candidates, hardest, mask, alpha, beta, lam, slack):
    if P == "con":
        return torch.ones_like(p), torch.ones_like(n)
    if P == "lin":
        return 1 - p, n
    if P == "sig":
        return 1 / (1 + torch.exp(alpha * (p - lam))), 1 / (1 + torch.exp(-beta * (n - lam)))
    others = (p[None, :] < n[:, None] + slack) & ~mask  # the other positive pairs of the batch
    negatives = (candidates > p.min() - slack) & ~mask
    negatives[torch.arange(len(n)), hardest] = False
    gap_p, gap_n = p[:, None] - p[None, :], n[:, None] - candidates

    def mean(terms, members, empty):
        count = members.sum(1)
        return torch.where(count > 0, (terms * members).sum(1) / count.clamp(min=1), empty)

    if P == "lin-ms":
        return (1 - mean(gap_p, others, 0.0)) * (1 - p), (1 + mean(gap_n, negatives, 0.0)) * n
    m_p, m_n = mean(torch.exp(alpha * gap_p), others, 1.0), mean(torch.exp(-beta * gap_n), negatives, 1.0)
    return 1 / (m_p + torch.exp(alpha * (p - lam))), 1 / (m_n + torch.exp(-beta * (n - lam)))


def circle(images, captions, margin=0.4, gamma=80.0):
    """Weights are constants of the gradient, as published."""

    def row(s, mask):
        pull, push = (1 + margin - s).clamp(min=0).detach(), (s + margin).clamp(min=0).detach()
        positive = (-gamma * pull * (s - 1 + margin)).masked_fill(~mask, -torch.inf).logsumexp(1)
        negative = (gamma * push * (s - margin)).masked_fill(mask, -torch.inf).logsumexp(1)
        return F.softplus(positive + negative)

    return _both_directions(row, images, captions)


def multi_similarity(images, captions, alpha=2.0, beta=50.0, lam=1.0, slack=0.1):
    def row(s, mask):
        hardest = s.masked_fill(mask, -torch.inf).max(1, keepdim=True)[0]
        easiest = s.masked_fill(~mask, torch.inf).min(1, keepdim=True)[0]
        mined_p, mined_n = mask & (s < hardest + slack), ~mask & (s > easiest - slack)
        pull = torch.log1p((torch.exp(-alpha * (s - lam)) * mined_p).sum(1)) / alpha
        return pull + torch.log1p((torch.exp(beta * (s - lam)) * mined_n).sum(1)) / beta

    return _both_directions(row, images, captions)


def binomial_deviance(images, captions, alpha=2.0, beta=50.0, lam=0.5):
    def row(s, mask):
        pull = (F.softplus(-alpha * (s - lam)) * mask).sum(1) / mask.sum(1)
        return pull + (F.softplus(beta * (s - lam)) * ~mask).sum(1) / (~mask).sum(1)

    return _both_directions(row, images, captions)


def _both_directions(row, images, captions):
    similarity = images @ captions.T
    mask = torch.eye(len(similarity)) > 0.5
    return row(similarity, mask).sum() + row(similarity.T, mask).sum()


def plain_form(name):
    """Return the baseline of an objective by its registry name."""
    if "/" in name:
        T, P = name.split("/")
        return lambda x, y: goal(x, y, T, P)
    return {
        "triplet": hinge,
        "triplet-sh": lambda x, y: hinge(x, y, hardest=True),
        "nt-xent": nt_xent,
        "sigmoid": sigmoid,
        "smooth-ap": smooth_ap,
        "circle": circle,
        "multi-similarity": multi_similarity,
        "binomial-deviance": binomial_deviance,
    }[name]
