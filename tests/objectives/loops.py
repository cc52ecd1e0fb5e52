"""Reference implementation of every objective: plain Python loops written from its equation.

A row objective takes one anchor's similarities as {candidate: s} for its positives and its negatives, and `others`,
all positive pairs of the batch as {(anchor, candidate): s}, and the weights of the positives, 1 unless they are graded;
it returns {candidate: dL/dS} and the anchor's value (None where no loss exists).
"""

from collections import defaultdict
from math import exp, log, log1p

from tercet.objectives.base import RowObjective


def bounded(exponent):
    return max(-60.0, min(60.0, exponent))


def sigma(exponent):
    return 1 / (1 + exp(-bounded(exponent)))


def softplus(exponent):
    return max(exponent, 0.0) + log1p(exp(-abs(exponent)))


def triplet(o, anchor, positives, negatives, others, w):
    gradient, value = defaultdict(float), 0.0
    most_similar = sorted(negatives, key=lambda n: (-negatives[n], n))[: o.top_k]
    for p, s_p in positives.items():
        for n in most_similar:
            s_n = negatives[n]
            if o.margin + s_n - s_p > 0:
                value += w[p] * (o.margin + s_n - s_p)
                gradient[p] -= w[p]
                gradient[n] += w[p]
    return gradient, value


def triplet_sh(o, anchor, positives, negatives, others, w):
    gradient, value = defaultdict(float), 0.0
    if negatives:
        n = hardest(negatives)
        for p, s_p in positives.items():
            if o.margin + negatives[n] - s_p > 0:
                value += w[p] * (o.margin + negatives[n] - s_p)
                gradient[p] -= w[p]
                gradient[n] += w[p]
    return gradient, value


def nt_xent(o, anchor, positives, negatives, others, w):
    candidates = {**positives, **negatives}
    largest = max(candidates.values())
    partition = sum(exp((s - largest) / o.temperature) for s in candidates.values())
    gradient, value = defaultdict(float), 0.0
    for j, s in candidates.items():
        probability = exp((s - largest) / o.temperature) / partition
        gradient[j] = (probability - w.get(j, 0) / sum(w.values())) / o.temperature
    for p, s_p in positives.items():
        value -= w[p] / sum(w.values()) * ((s_p - largest) / o.temperature - log(partition))
    return gradient, value


def smooth_ap(o, anchor, positives, negatives, others, w):
    candidates = {**positives, **negatives}
    gradient, precision = defaultdict(float), 0.0
    for i, s_i in positives.items():
        above = {j: sigma((s - s_i) / o.temperature) for j, s in candidates.items() if j != i}
        rank_among_positives = 1 + sum(g for j, g in above.items() if j in positives)
        rank = 1 + sum(above.values())
        share = w[i] / sum(w.values())
        precision += share * rank_among_positives / rank
        for j, g in above.items():
            slope = g * (1 - g) / o.temperature
            # quotient rule on R+ / R; S_j enters with +slope, S_i with -slope
            d_precision = ((j in positives) * slope * rank - rank_among_positives * slope) / rank**2
            gradient[j] -= share * d_precision
            gradient[i] += share * d_precision
    return gradient, 1 - precision


def sigmoid(o, anchor, positives, negatives, others, w):
    share = 0.5 if o.reduction == "sum" else 1.0  # every pair once, half per direction; the mean already halves
    bias = log_odds(o.batch) if o.bias == "batch" else o.bias
    gradient, value = defaultdict(float), 0.0
    for candidates in (positives, negatives):
        for j, s in candidates.items():
            target, argument = w.get(j, 0), s / o.temperature + bias
            value += share * (target * softplus(-argument) + (1 - target) * softplus(argument))
            gradient[j] = share * ((1 - target) * sigma(argument) - target * sigma(-argument)) / o.temperature
    return gradient, value


def log_odds(weights):
    """`weights`: of every pair of the batch that is not ignored."""
    positive, negative = sum(weights), sum(1 - weight for weight in weights)
    return log(max(1, positive)) - log(max(1, negative))


def circle(o, anchor, positives, negatives, others, w):
    a_p = {p: max(0.0, 1 + o.margin - s) for p, s in positives.items()}
    a_n = {n: max(0.0, s + o.margin) for n, s in negatives.items()}
    z_p = {p: -o.gamma * a_p[p] * (s - 1 + o.margin) + log(w[p]) for p, s in positives.items()}
    z_n = {n: o.gamma * a_n[n] * (s - o.margin) for n, s in negatives.items()}
    gradient = defaultdict(float)
    if not z_n:
        return gradient, 0.0 if o.has_value else None
    total = log_sum(z_p.values()) + log_sum(z_n.values())
    z = 1 / (1 + exp(-total)) if total > -700 else 0.0
    for n, s in negatives.items():
        slope = a_n[n] if o.detach_weights else 2 * s * (a_n[n] > 0)
        gradient[n] = z * exp(z_n[n] - log_sum(z_n.values())) * o.gamma * slope
    for p, s in positives.items():
        slope = a_p[p] if o.detach_weights else 2 * (1 - s) * (a_p[p] > 0)
        gradient[p] = -z * exp(z_p[p] - log_sum(z_p.values())) * o.gamma * slope
    return gradient, softplus(total) if o.has_value else None


def multi_similarity(o, anchor, positives, negatives, others, w):
    kept_p, kept_n = dict(positives), dict(negatives)
    if o.slack is not None:
        kept_p = {p: s for p, s in positives.items() if negatives and s < max(negatives.values()) + o.slack}
        kept_n = {n: s for n, s in negatives.items() if s > min(positives.values()) - o.slack}
    z_p = {p: -o.alpha * (s - o.lam) + log(w[p]) for p, s in kept_p.items()}
    z_n = {n: o.beta * (s - o.lam) for n, s in kept_n.items()}
    gradient, value = defaultdict(float), 0.0
    for terms, sign, steepness in ((z_p, -1, o.alpha), (z_n, 1, o.beta)):
        if terms:
            value += softplus(log_sum(terms.values())) / steepness
            for j, z in terms.items():
                gradient[j] = sign * exp(z - softplus(log_sum(terms.values())))
    return gradient, value


def binomial_deviance(o, anchor, positives, negatives, others, w):
    gradient, value = defaultdict(float), 0.0
    for p, s in positives.items():
        share = w[p] / sum(w.values())
        value += share * softplus(-o.alpha * (s - o.lam))
        gradient[p] = -share * o.alpha * sigma(-o.alpha * (s - o.lam))
    for n, s in negatives.items():
        value += softplus(o.beta * (s - o.lam)) / len(negatives)
        gradient[n] = o.beta * sigma(o.beta * (s - o.lam)) / len(negatives)
    return gradient, value


def log_sum(exponents):
    largest = max(exponents)
    return largest + log(sum(exp(z - largest) for z in exponents))


def goal(o, anchor, positives, negatives, others, w):
    gradient, value = defaultdict(float), 0.0
    if not negatives:
        return gradient, value if o.has_value else None
    n = hardest(negatives)
    s_n = negatives[n]
    smallest = min(others.values())
    n_set = [s for j, s in negatives.items() if j != n and s > smallest - o.slack]
    for p, s_p in positives.items():
        p_set = [s for pair, s in others.items() if pair != (anchor, p) and s < s_n + o.slack]
        weight = triplet_weight(o, s_p, s_n)
        pull, push = pair_weights(o, s_p, s_n, p_set, n_set)
        gradient[p] -= w[p] * weight * pull
        gradient[n] += w[p] * weight * push
        if o.has_value:
            value += w[p] * goal_loss(o, s_p, s_n)
    return gradient, value if o.has_value else None


def triplet_weight(o, s_p, s_n):
    if o.triplet_weight == "con":
        return 1.0 if o.margin is None or o.margin + s_n - s_p > 0 else 0.0
    if o.triplet_weight == "nca":
        return 1 / (1 + exp(bounded(o.tau * (s_p - s_n))))
    return 1 / (1 + exp(bounded(o.tau * (s_p * (2 - s_p) - s_n**2 - o.offset))))


def pair_weights(o, s_p, s_n, p_set, n_set):
    mean = lambda terms, empty: sum(terms) / len(terms) if terms else empty  # noqa: E731
    empty = 1.0 if o.empty == "plain" else 0.0
    e_p, e_n = exp(bounded(o.alpha * (s_p - o.lam))), exp(bounded(-o.beta * (s_n - o.lam)))
    if o.pair_weight == "con":
        return 1.0, 1.0
    if o.pair_weight == "lin":
        return 1 - s_p, s_n
    if o.pair_weight == "sig":
        return 1 / (1 + e_p), 1 / (1 + e_n)
    if o.pair_weight == "lin-ms":
        mu_p, mu_n = mean([s_p - r for r in p_set], 0.0), mean([s_n - r for r in n_set], 0.0)
        return (1 - mu_p) * (1 - s_p), (1 + mu_n) * s_n
    m_p = mean([exp(bounded(o.alpha * (s_p - r))) for r in p_set], empty)
    m_n = mean([exp(bounded(-o.beta * (s_n - r))) for r in n_set], empty)
    return 1 / (m_p + e_p), 1 / (m_n + e_n)


def goal_loss(o, s_p, s_n):
    if o.name == "con/con":
        return s_n - s_p if o.margin is None else max(0.0, o.margin + s_n - s_p)
    if o.name == "con/lin":
        return (1 - s_p) ** 2 / 2 + s_n**2 / 2
    if o.name == "con/sig":
        return softplus(-o.alpha * (s_p - o.lam)) / o.alpha + softplus(o.beta * (s_n - o.lam)) / o.beta
    if o.name == "nca/con":
        return softplus(o.tau * (s_n - s_p)) / o.tau
    return softplus(o.tau * (s_n**2 - s_p * (2 - s_p) + o.offset)) / (2 * o.tau)


def hardest(negatives):
    return max(negatives, key=lambda j: (negatives[j], -j))


LOOPS = {
    "triplet": triplet,
    "triplet-sh": triplet_sh,
    "nt-xent": nt_xent,
    "smooth-ap": smooth_ap,
    "sigmoid": sigmoid,
    "circle": circle,
    "multi-similarity": multi_similarity,
    "binomial-deviance": binomial_deviance,
}


class WithBatch:
    """An objective's settings, and the weights of all pairs of the batch."""

    def __init__(self, objective, batch):
        self.objective, self.batch = objective, batch

    def __getattr__(self, name):
        return getattr(self.objective, name)


def both_directions(o: RowObjective, similarity, positives, ignored=None):
    """(G_i2t, G_t2i, value) as nested lists, or value None."""
    S, P = similarity.tolist(), positives.tolist()
    out = [[False] * len(row) for row in P] if ignored is None else ignored.tolist()
    batch = [float(p) for row, ignore in zip(P, out, strict=True) for p, no in zip(row, ignore, strict=True) if not no]
    o = WithBatch(o, batch)
    i2t, image_value = one_direction(o, S, P, out)
    t2i, caption_value = one_direction(o, *(list(map(list, zip(*matrix, strict=True))) for matrix in (S, P, out)))
    value = None if image_value is None else image_value + caption_value
    return i2t, list(map(list, zip(*t2i, strict=True))), value


def one_direction(o, S, P, out):
    row_objective = LOOPS.get(o.name, goal)
    allowed = [[j for j in range(len(S[a])) if not out[a][j]] for a in range(len(S))]
    others = {(a, j): S[a][j] for a in range(len(S)) for j in allowed[a] if P[a][j]}
    anchors = [a for a in range(len(S)) if any(P[a][j] for j in allowed[a])]
    weight = 1.0 if o.reduction == "sum" else 0.5 / max(1, len(anchors))
    G, total = [[0.0] * len(row) for row in S], 0.0
    for a in anchors:
        positives = {j: S[a][j] for j in allowed[a] if P[a][j]}
        negatives = {j: S[a][j] for j in allowed[a] if not P[a][j]}
        weights = {j: float(P[a][j]) for j in positives}
        gradient, value = row_objective(o, a, positives, negatives, others, weights)
        for j, g in gradient.items():
            G[a][j] = weight * g
        total = None if value is None else total + weight * value
    return G, total
