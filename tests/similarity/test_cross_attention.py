"""Cross attention against loops over single pairs, written from the equations; padding; blocks; what used to be NaN."""

import math

import pytest
import torch

from tercet.similarity import CrossAttention, Parts, by_blocks
from tercet.similarity.parts import padded_with_zeros

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
    """`row`: the products of one part of a context with every query."""
    if norm.startswith("clipped"):
        row = [x if x > 0 else 0.1 * x for x in row]
    if norm == "softmax":
        total = sum(math.exp(x) for x in row)
        return [math.exp(x) / total for x in row]
    if norm.endswith("l2norm"):
        size = math.sqrt(sum(x * x for x in row)) + 1e-8
    elif norm.endswith("l1norm"):
        size = sum(abs(x) for x in row) + 1e-8
    else:
        size = 1.0
    return [x / size for x in row]


def kept_by(weights, focus):
    if focus == "equal":
        signs = [len(weights) * a - sum(weights) for a in weights]
    elif focus == "prob":
        signs = [sum((a - b) * math.sqrt(b) for b in weights) for a in weights]
    else:
        signs = [1.0] * len(weights)
    kept = [a if sign > 0 else 0.0 for a, sign in zip(weights, signs, strict=True)]
    return kept if any(kept) else weights  # all are alike: published, 0/0


def one_pair(context, queries, how):
    """Plain lists of vectors -> the similarity of one context with one set of queries."""

    def dot(a, b):
        return sum(x * y for x, y in zip(a, b, strict=True))

    scaled = [norm_along_queries([dot(c, q) for q in queries], how.norm) for c in context]
    cosines = []
    for number, query in enumerate(queries):
        powers = [math.exp(how.sharpness * row[number]) for row in scaled]
        weights = kept_by([power / sum(powers) for power in powers], how.focus)
        mix = [sum(a / sum(weights) * c[d] for a, c in zip(weights, context, strict=True)) for d in range(len(query))]
        sizes = math.sqrt(dot(query, query)) * math.sqrt(dot(mix, mix))
        cosines.append(dot(query, mix) / max(sizes, 1e-8))
    if how.pooling == "LogSumExp":
        return math.log(sum(math.exp(how.pooling_sharpness * r) for r in cosines)) / how.pooling_sharpness
    if how.pooling == "Max":
        return max(cosines)
    return sum(cosines) / (len(cosines) if how.pooling == "Mean" else 1)


@pytest.mark.parametrize("focus", FOCUSES)
@pytest.mark.parametrize("pooling", POOLINGS)
@pytest.mark.parametrize("norm", NORMS)
def test_equal_to_the_equation_pair_by_pair(norm, pooling, focus):
    lengths, other_lengths = [4, 2, 5], [3, 1, 6, 2]
    contexts, queries = sets(lengths), sets(other_lengths, seed=1)
    how = CrossAttention(7.0, norm, focus, pooling, 5.0)
    found = how(Parts.of(contexts), Parts.of(queries))
    for i, length in enumerate(lengths):
        for j, other in enumerate(other_lengths):
            wanted = one_pair(contexts[i, :length].tolist(), queries[j, :other].tolist(), how)
            assert found[i, j].item() == pytest.approx(wanted, abs=1e-12)


def both_ways(images, captions):
    """A comparison that uses both directions, as BFAN does."""
    one = CrossAttention(9.0, pooling="LogSumExp")
    other = CrossAttention(20.0, focus="prob")
    return one(images, captions) + other(captions, images).T


@pytest.mark.parametrize("kept", [0, 10**9])
@pytest.mark.parametrize("entries", [1, 150, 10**6])
def test_blocks_change_nothing(entries, kept):
    images, captions = sets([5, 3, 4, 5, 1]), sets([3, 7, 1, 6, 2, 3], seed=1)
    leaves = [images.clone().requires_grad_(), captions.clone().requires_grad_()]
    whole = both_ways(Parts(leaves[0], Parts.of(images).real), Parts(leaves[1], Parts.of(captions).real))
    upstream = torch.randn(whole.shape, dtype=torch.float64, generator=torch.Generator().manual_seed(2))
    wanted = torch.autograd.grad(whole, leaves, upstream)
    found = by_blocks(both_ways, *leaves, entries=entries, kept=kept)
    torch.testing.assert_close(found, whole, rtol=0, atol=1e-13)
    for ours, theirs in zip(torch.autograd.grad(found, leaves, upstream), wanted, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-12)


def test_a_gradient_that_autograd_finds_numerically():
    images, captions = sets([3, 2]).requires_grad_(), sets([2, 3], seed=1).requires_grad_()
    real = Parts.of(images).real, Parts.of(captions).real

    def compare(a, b):
        return both_ways(Parts(a * real[0][..., None], real[0]), Parts(b * real[1][..., None], real[1]))

    assert torch.autograd.gradcheck(compare, (images, captions), atol=1e-6)


def test_width_of_the_padding_has_no_effect():
    narrow, wide = sets([3, 1]), sets([3, 1], longest=9)
    captions = sets([4, 2], seed=1)
    torch.testing.assert_close(
        by_blocks(both_ways, narrow, captions), by_blocks(both_ways, wide, captions), rtol=0, atol=1e-13
    )


@pytest.mark.parametrize("sharpness", [9.0, 20.0, 36.0, 100.0])
@pytest.mark.parametrize("norm", NORMS)
def test_a_sharp_attention_does_not_see_padding(norm, sharpness):
    """Regions that all point away from the word: next to them the padding's product of 0 is huge."""
    word = sets([1], seed=3).float()
    away = torch.cat([-word, -word + 0.3 * sets([1], seed=4).float()], dim=1)
    how = CrossAttention(sharpness, norm)
    alone = how(Parts.of(away), Parts.of(word)).item()
    beside = how(Parts.of(torch.nn.functional.pad(away, (0, 0, 0, 3))), Parts.of(word)).item()
    assert alone < -0.8
    assert beside == pytest.approx(alone, abs=1e-6)
    small = how(Parts.of(1e-6 * away), Parts.of(word)).item()
    assert small < -0.8  # cosines do not depend on lengths, small as they may be


@pytest.mark.parametrize("focus", FOCUSES)
@pytest.mark.parametrize(
    ("lengths", "other_lengths"),
    [([1], [1]), ([1], [5]), ([5], [1]), ([1, 1], [2, 3]), ([3], [2, 4]), ([0, 2], [3, 0])],
)
def test_nothing_is_nan_where_there_is_one_part_or_none(lengths, other_lengths, focus):
    """One image, one word, one region, or none left: published, these crash or give 0/0."""
    images, captions = sets(lengths, longest=5).requires_grad_(), sets(other_lengths, seed=1).requires_grad_()
    for norm in NORMS:
        for pooling in POOLINGS:
            how = CrossAttention(20.0 if pooling == "Mean" else 50.0, norm, focus, pooling)
            for compare in (how, lambda a, b, how=how: how(b, a).T):
                similarity = by_blocks(compare, images, captions)
                assert similarity.shape == (len(lengths), len(other_lengths))
                gradients = torch.autograd.grad(similarity.sum(), (images, captions))
                assert similarity.isfinite().all()
                assert all(gradient.isfinite().all() for gradient in gradients)


@pytest.mark.parametrize("focus", FOCUSES)
@pytest.mark.parametrize("norm", NORMS)
def test_equal_attention_keeps_every_part(norm, focus):
    """Regions that are all alike, or all zeros: no weight is above the mean."""
    alike = sets([1], dim=6).expand(1, 4, 6).clone()
    blank = padded_with_zeros(torch.zeros(1, 4, 6, dtype=torch.float64), torch.ones(1, 4, dtype=torch.bool))
    words = sets([3], seed=1)
    how = CrossAttention(20.0, norm, focus)
    wanted = (words[0] @ alike[0, 0]).mean()  # the mix of equal vectors is that vector
    assert how(Parts.of(alike), Parts.of(words)).item() == pytest.approx(wanted.item(), abs=1e-9)
    for vectors in (alike, blank):
        leaf = vectors.clone().requires_grad_()
        found = how(Parts(leaf, Parts.of(vectors).real), Parts.of(words))
        found.sum().backward()
        assert found.isfinite().all()
        assert leaf.grad.isfinite().all()
    assert how(Parts.of(blank), Parts.of(words)).item() == pytest.approx(0, abs=1e-9)


def test_a_real_part_of_zeros_counts_and_padding_does_not():
    real = torch.tensor([[True, True, False]])
    vectors = torch.zeros(1, 3, 4)
    vectors[0, 0, 1] = 1
    vectors[0, 2] = 7  # padding that was not zero
    marked = padded_with_zeros(vectors, real)
    assert torch.equal(Parts.of(marked).real, real)
    assert marked.abs().max() == 1
    assert (marked.float() @ marked.float().mT).diagonal(dim1=1, dim2=2).tolist() == [[1, 0, 0]]


def test_no_images_or_no_captions():
    empty = torch.zeros(0, 3, 4)
    assert by_blocks(both_ways, empty, sets([2], dim=4).float()).shape == (0, 1)
    assert by_blocks(both_ways, sets([2], dim=4).float(), empty).shape == (1, 0)


@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("pooling", POOLINGS)
@pytest.mark.parametrize("focus", FOCUSES)
def test_pairs_alone_are_the_diagonal_of_all(norm, pooling, focus):
    attend = CrossAttention(4.0, norm, focus, pooling, 5.0)
    contexts, queries = sets([3, 1, 5, 0], longest=6), sets([2, 4, 1, 3], seed=1)
    slopes = []
    for compare in (lambda c, q: attend(c, q).diagonal(), attend.of_pairs):
        leaves = [contexts.clone().requires_grad_(), queries.clone().requires_grad_()]
        found = compare(*(Parts(leaf, leaf.detach().abs().amax(dim=2) != 0) for leaf in leaves))
        slopes.append([found.detach(), *torch.autograd.grad(found.square().sum(), leaves)])
    for whole, alone in zip(*slopes, strict=True):
        torch.testing.assert_close(alone, whole, atol=1e-12, rtol=1e-10)
