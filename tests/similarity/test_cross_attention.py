"""Cross attention compared with loops over single pairs, written from the equations; padding; blocks; NaN cases."""

import math

import pytest
import torch

from tercet.similarity import CrossAttention, PaddedSets, blockwise_similarity
from tercet.similarity.padded_sets import zero_pad

NORMS = ["clipped_l2norm", "l2norm", "clipped_l1norm", "l1norm", "clipped", "softmax", "no_norm"]
POOLINGS = ["LogSumExp", "Mean", "Max", "Sum"]
FOCUSES = ["all", "equal", "prob"]


def sets(lengths, dim=6, seed=0, longest=None):
    """Sets of unit vectors of these lengths, padded with zeros."""
    generator = torch.Generator().manual_seed(seed)
    vectors = torch.zeros(len(lengths), longest or max(lengths), dim, dtype=torch.float64)
    for row, length in enumerate(lengths):
        vectors[row, :length] = torch.nn.functional.normalize(
            torch.randn(length, dim, generator=generator, dtype=torch.float64), dim=1
        )
    return vectors


def norm_along_queries(row, norm):
    """`row`: the products of one context element with every query."""
    if norm.startswith("clipped"):
        row = [x if x > 0 else 0.1 * x for x in row]
    if norm == "softmax":
        total = sum(math.exp(x) for x in row)
        return [math.exp(x) / total for x in row]
    if norm.endswith("l2norm"):
        norm_value = math.sqrt(sum(x * x for x in row)) + 1e-8
    elif norm.endswith("l1norm"):
        norm_value = sum(abs(x) for x in row) + 1e-8
    else:
        norm_value = 1.0
    return [x / norm_value for x in row]


def focused(weights, focus):
    if focus == "equal":
        excess = [len(weights) * a - sum(weights) for a in weights]
    elif focus == "prob":
        excess = [sum((a - b) * math.sqrt(b) for b in weights) for a in weights]
    else:
        excess = [1.0] * len(weights)
    focused_weights = [a if e > 0 else 0.0 for a, e in zip(weights, excess, strict=True)]
    return focused_weights if any(focused_weights) else weights  # all are equal: 0/0 in the published code


def one_pair(context, queries, attention):
    """Similarity of one context with one set of queries, given as lists of vectors."""

    def dot(a, b):
        return sum(x * y for x, y in zip(a, b, strict=True))

    scaled = [norm_along_queries([dot(c, q) for q in queries], attention.norm) for c in context]
    cosines = []
    for index, query in enumerate(queries):
        powers = [math.exp(attention.inverse_temperature * row[index]) for row in scaled]
        weights = focused([power / sum(powers) for power in powers], attention.focus)
        attended = [
            sum(a / sum(weights) * c[d] for a, c in zip(weights, context, strict=True)) for d in range(len(query))
        ]
        norms = math.sqrt(dot(query, query)) * math.sqrt(dot(attended, attended))
        cosines.append(dot(query, attended) / max(norms, 1e-8))
    if attention.pooling == "LogSumExp":
        return (
            math.log(sum(math.exp(attention.pooling_inverse_temperature * r) for r in cosines))
            / attention.pooling_inverse_temperature
        )
    if attention.pooling == "Max":
        return max(cosines)
    return sum(cosines) / (len(cosines) if attention.pooling == "Mean" else 1)


@pytest.mark.parametrize("focus", FOCUSES)
@pytest.mark.parametrize("pooling", POOLINGS)
@pytest.mark.parametrize("norm", NORMS)
def test_equal_to_the_equation_pair_by_pair(norm, pooling, focus):
    lengths, other_lengths = [4, 2, 5], [3, 1, 6, 2]
    contexts, queries = sets(lengths), sets(other_lengths, seed=1)
    attention = CrossAttention(7.0, norm, focus, pooling, 5.0)
    similarity = attention(PaddedSets.of(contexts), PaddedSets.of(queries))
    for i, length in enumerate(lengths):
        for j, other in enumerate(other_lengths):
            expected = one_pair(contexts[i, :length].tolist(), queries[j, :other].tolist(), attention)
            assert similarity[i, j].item() == pytest.approx(expected, abs=1e-12)


def both_directions(images, captions):
    """A comparison that uses both directions, as BFAN does."""
    one = CrossAttention(9.0, pooling="LogSumExp")
    other = CrossAttention(20.0, focus="prob")
    return one(images, captions) + other(captions, images).T


@pytest.mark.parametrize("max_saved_products", [0, 10**9])
@pytest.mark.parametrize("block_products", [1, 150, 10**6])
def test_blocks_change_nothing(block_products, max_saved_products):
    images, captions = sets([5, 3, 4, 5, 1]), sets([3, 7, 1, 6, 2, 3], seed=1)
    leaves = [images.clone().requires_grad_(), captions.clone().requires_grad_()]
    full = both_directions(
        PaddedSets(leaves[0], PaddedSets.of(images).real), PaddedSets(leaves[1], PaddedSets.of(captions).real)
    )
    upstream = torch.randn(full.shape, dtype=torch.float64, generator=torch.Generator().manual_seed(2))
    expected = torch.autograd.grad(full, leaves, upstream)
    similarity = blockwise_similarity(
        both_directions, *leaves, block_products=block_products, max_saved_products=max_saved_products
    )
    torch.testing.assert_close(similarity, full, rtol=0, atol=1e-13)
    for ours, theirs in zip(torch.autograd.grad(similarity, leaves, upstream), expected, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-12)


def test_gradients_are_those_of_finite_differences():
    images, captions = sets([3, 2]).requires_grad_(), sets([2, 3], seed=1).requires_grad_()
    real = PaddedSets.of(images).real, PaddedSets.of(captions).real

    def compare(a, b):
        return both_directions(PaddedSets(a * real[0][..., None], real[0]), PaddedSets(b * real[1][..., None], real[1]))

    assert torch.autograd.gradcheck(compare, (images, captions), atol=1e-6)


def test_width_of_the_padding_has_no_effect():
    narrow, wide = sets([3, 1]), sets([3, 1], longest=9)
    captions = sets([4, 2], seed=1)
    torch.testing.assert_close(
        blockwise_similarity(both_directions, narrow, captions),
        blockwise_similarity(both_directions, wide, captions),
        rtol=0,
        atol=1e-13,
    )


@pytest.mark.parametrize("inverse_temperature", [9.0, 20.0, 36.0, 100.0])
@pytest.mark.parametrize("norm", NORMS)
def test_padding_has_no_effect_at_a_high_inverse_temperature(norm, inverse_temperature):
    """Regions that all point away from the word, so that the padding's product of 0 is the largest."""
    word = sets([1], seed=3).float()
    away = torch.cat([-word, -word + 0.3 * sets([1], seed=4).float()], dim=1)
    attention = CrossAttention(inverse_temperature, norm)
    alone = attention(PaddedSets.of(away), PaddedSets.of(word)).item()
    padded = attention(PaddedSets.of(torch.nn.functional.pad(away, (0, 0, 0, 3))), PaddedSets.of(word)).item()
    assert alone < -0.8
    assert padded == pytest.approx(alone, abs=1e-6)
    small = attention(PaddedSets.of(1e-6 * away), PaddedSets.of(word)).item()
    assert small < -0.8  # cosines do not depend on norms, however small


@pytest.mark.parametrize("focus", FOCUSES)
@pytest.mark.parametrize(
    ("lengths", "other_lengths"),
    [([1], [1]), ([1], [5]), ([5], [1]), ([1, 1], [2, 3]), ([3], [2, 4]), ([0, 2], [3, 0])],
)
def test_nothing_is_nan_with_one_element_or_none(lengths, other_lengths, focus):
    """One image, one word, one region, or none: the published code crashes or gives 0/0."""
    images, captions = sets(lengths, longest=5).requires_grad_(), sets(other_lengths, seed=1).requires_grad_()
    for norm in NORMS:
        for pooling in POOLINGS:
            attention = CrossAttention(20.0 if pooling == "Mean" else 50.0, norm, focus, pooling)
            for compare in (attention, lambda a, b, attention=attention: attention(b, a).T):
                similarity = blockwise_similarity(compare, images, captions)
                assert similarity.shape == (len(lengths), len(other_lengths))
                gradients = torch.autograd.grad(similarity.sum(), (images, captions))
                assert similarity.isfinite().all()
                assert all(gradient.isfinite().all() for gradient in gradients)


@pytest.mark.parametrize("focus", FOCUSES)
@pytest.mark.parametrize("norm", NORMS)
def test_equal_attention_keeps_every_element(norm, focus):
    """Equal or all-zero regions: no weight is above the mean."""
    alike = sets([1], dim=6).expand(1, 4, 6).clone()
    blank = zero_pad(torch.zeros(1, 4, 6, dtype=torch.float64), torch.ones(1, 4, dtype=torch.bool))
    words = sets([3], seed=1)
    attention = CrossAttention(20.0, norm, focus)
    expected = (words[0] @ alike[0, 0]).mean()  # the attended vector of equal regions is that region
    assert attention(PaddedSets.of(alike), PaddedSets.of(words)).item() == pytest.approx(expected.item(), abs=1e-9)
    for vectors in (alike, blank):
        leaf = vectors.clone().requires_grad_()
        similarity = attention(PaddedSets(leaf, PaddedSets.of(vectors).real), PaddedSets.of(words))
        similarity.sum().backward()
        assert similarity.isfinite().all()
        assert leaf.grad.isfinite().all()
    assert attention(PaddedSets.of(blank), PaddedSets.of(words)).item() == pytest.approx(0, abs=1e-9)


def test_a_real_element_of_zeros_counts_and_padding_does_not():
    real = torch.tensor([[True, True, False]])
    vectors = torch.zeros(1, 3, 4)
    vectors[0, 0, 1] = 1
    vectors[0, 2] = 7  # padding that was not zero
    marked = zero_pad(vectors, real)
    assert torch.equal(PaddedSets.of(marked).real, real)
    assert marked.abs().max() == 1
    assert (marked.float() @ marked.float().mT).diagonal(dim1=1, dim2=2).tolist() == [[1, 0, 0]]


def test_no_images_or_no_captions():
    empty = torch.zeros(0, 3, 4)
    assert blockwise_similarity(both_directions, empty, sets([2], dim=4).float()).shape == (0, 1)
    assert blockwise_similarity(both_directions, sets([2], dim=4).float(), empty).shape == (1, 0)


@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("pooling", POOLINGS)
@pytest.mark.parametrize("focus", FOCUSES)
def test_similarities_of_pairs_are_the_diagonal(norm, pooling, focus):
    attend = CrossAttention(4.0, norm, focus, pooling, 5.0)
    contexts, queries = sets([3, 1, 5, 0], longest=6), sets([2, 4, 1, 3], seed=1)
    results = []
    for compare in (lambda c, q: attend(c, q).diagonal(), attend.of_pairs):
        leaves = [contexts.clone().requires_grad_(), queries.clone().requires_grad_()]
        similarity = compare(*(PaddedSets(leaf, leaf.detach().abs().amax(dim=2) != 0) for leaf in leaves))
        results.append([similarity.detach(), *torch.autograd.grad(similarity.square().sum(), leaves)])
    for full, alone in zip(*results, strict=True):
        torch.testing.assert_close(alone, full, atol=1e-12, rtol=1e-10)
