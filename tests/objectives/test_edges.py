"""Finite similarities give finite gradients on any batch; wrong input raises a clear error."""

import numpy as np
import pytest
import torch

import tercet
from tercet.objectives import OBJECTIVES
from tests.examples import others_slow

EVERY = [(name, {}) for name in OBJECTIVES] + [(name, {"reading": "code"}) for name in OBJECTIVES if "/" in name]
every_objective = pytest.mark.parametrize(("name", "settings"), EVERY, ids=str)

HOUSE = torch.arange(3)[:, None] == torch.arange(3).repeat_interleave(5)[None, :]
NOISE = torch.randn(3, 15, generator=torch.Generator().manual_seed(0))
EDGES = {
    "a batch of one": (torch.tensor([[0.3]]), torch.tensor([[True]])),
    "one image, five captions": (NOISE[:1, :5], HOUSE[:1, :5]),
    "one pair, not positive": (torch.tensor([[0.3]]), torch.tensor([[False]])),
    "no positive at all": (NOISE, torch.zeros_like(HOUSE)),
    "no negative at all": (NOISE, torch.ones_like(HOUSE)),
    "all equal": (torch.full((3, 15), 0.4), HOUSE),
    "all zero": (torch.zeros(3, 15), HOUSE),
    "1e4 apart": (NOISE * 1e4, HOUSE),
    "all 1e4": (torch.full((3, 15), 1e4), HOUSE),
    "all -1e4": (torch.full((3, 15), -1e4), HOUSE),
    "positives far above": (torch.where(HOUSE, 1e4, -1e4), HOUSE),
    "positives far below": (torch.where(HOUSE, -1e4, 1e4), HOUSE),
    "no image": (torch.zeros(0, 5), torch.zeros(0, 5, dtype=torch.bool)),
    "no caption": (torch.zeros(5, 0), torch.zeros(5, 0, dtype=torch.bool)),
}


@every_objective
@pytest.mark.parametrize("edge", others_slow([*EDGES][::2] + [*EDGES][1::2], 7))
@pytest.mark.parametrize(
    "dtypes",
    [(torch.float32, torch.float16), pytest.param((torch.float64, torch.bfloat16), marks=pytest.mark.slow)],
    ids=["float32 and 16", "float64 and bfloat16"],
)
def test_finite_similarity_gives_finite_gradient_and_scalar(name, settings, edge, dtypes):
    o = tercet.objective(name, **settings)
    similarity, positives = EDGES[edge]
    for dtype in dtypes:
        leaf = similarity.to(dtype).detach().clone().requires_grad_()
        scalar = o.on_similarity(leaf, positives)
        scalar.backward()
        assert scalar.isfinite()
        # The largest float16 is 65504: larger gradients overflow in it.
        in_float32 = o.pair_gradient(leaf.detach().float(), positives)
        assert in_float32.isfinite().all()
        assert leaf.grad.isfinite().all() or (dtype == torch.float16 and in_float32.abs().max() > 65504)


@pytest.mark.parametrize("edge", [edge for edge in EDGES if edge not in ("no image", "no caption")])
@pytest.mark.parametrize(("name", "settings"), [v for v in EVERY if tercet.objective(v[0], **v[1]).has_value], ids=str)
def test_autograd_of_value_agrees_at_the_edges(name, settings, edge):
    o = tercet.objective(name, **settings)
    similarity, positives = EDGES[edge]
    similarity = similarity.double().requires_grad_()
    (gradient,) = torch.autograd.grad(o.value(similarity, positives), similarity)
    torch.testing.assert_close(gradient, o.pair_gradient(similarity, positives), rtol=1e-9, atol=1e-9)


@every_objective
def test_zero_vectors_give_finite_gradients(name, settings):
    images, captions = torch.zeros(3, 8, requires_grad=True), torch.zeros(15, 8, requires_grad=True)
    owners = torch.arange(3).repeat_interleave(5)
    tercet.objective(name, **settings)(images, captions, owners=owners).backward()
    assert images.grad.isfinite().all()
    assert captions.grad.isfinite().all()


@every_objective
def test_a_hinge_at_exactly_zero_is_not_active(name, settings):
    """margin + S_n - S_p == 0: weight 0 for the objectives that are hinges."""
    o = tercet.objective(name, **settings)
    if name not in ("triplet", "triplet-sh") and not (name.startswith("con/") and o.margin is not None):
        return
    similarity = torch.tensor([[0.75, 0.5]], dtype=torch.float64)
    o = tercet.objective(name, **{**settings, "margin": 0.25})
    assert not o.pair_gradient(similarity, torch.tensor([[True, False]])).any()


S, P = NOISE, HOUSE
WRONG = {
    "positives of another shape": (lambda o: o.pair_gradient(S, P.T), r"positives \(15, 3\).*\(3, 15\)"),
    "positives of integers": (lambda o: o.pair_gradient(S, P.long()), "boolean mask or weights in 0..1"),
    "weights above 1": (lambda o: o.pair_gradient(S, 2.0 * P), r"weights of positives must be in 0..1, got 0 to 2"),
    "weights that are NaN": (lambda o: o.pair_gradient(S, P / 0.0), r"must be in 0\.\.1, got nan"),
    "ignored of another shape": (lambda o: o.pair_gradient(S, P, P[:2]), "ignored"),
    "diagonal of a rectangle": (lambda o: o.pair_gradient(S), "3 x 15: give a positives mask"),
    "integer similarity": (lambda o: o.pair_gradient(S.long(), P), "floating-point"),
    "a vector": (lambda o: o.pair_gradient(S[0], P[0]), "floating-point image x caption matrix"),
    "unequal dims": (lambda o: o(torch.zeros(3, 8), torch.zeros(3, 9)), "equal dim"),
    "unpaired rows": (lambda o: o(torch.zeros(3, 8), torch.zeros(15, 8)), "3 images and 15 captions"),
    "ids without a partner": (
        lambda o: o(torch.zeros(3, 8), torch.zeros(3, 8), image_ids=torch.arange(3)),
        "give both or neither",
    ),
    "owners and ids": (
        lambda o: o(
            torch.zeros(3, 8), torch.zeros(3, 8), owners=torch.arange(3), image_ids=torch.arange(3),
            caption_ids=torch.arange(3),
        ),
        "not both",
    ),
    "owners out of range": (
        lambda o: o(torch.zeros(3, 8), torch.zeros(3, 8), owners=torch.tensor([7, 8, 9])),
        "owners are row indices of 3 images, got 7 to 9",
    ),
    "owners in a list": (lambda o: o(torch.zeros(2, 8), torch.zeros(2, 8), owners=[0, 1]), "owners must be a tensor"),
    "positives in a list": (lambda o: o.pair_gradient(S, P.tolist()), "positives must be a tensor, got list"),
    "images as an array": (lambda o: o(P.numpy(), torch.zeros(3, 8)), "images must be a tensor, got ndarray; torch.fr"),
    "captions as an array": (lambda o: o(torch.zeros(3, 8), P.numpy()), "captions must be a tensor, got ndarray"),
    "images in a list": (lambda o: o([[1.0]], torch.zeros(1, 1)), "images must be a tensor, got list"),
    "similarity as an array": (lambda o: o.on_similarity(S.numpy(), P), "similarity must be a tensor, got ndarray"),
    "integer embeddings": (
        lambda o: o(torch.eye(3).long(), torch.eye(3).long()), "floating-point embeddings, got torch.int64"
    ),
    "scale as text": (lambda o: o(torch.eye(3), torch.eye(3), scale="2"), "scale must be a number or .* got str"),
    "two dtypes": (lambda o: o(torch.zeros(3, 8), torch.zeros(3, 8).double()), "both must have the same dtype"),
    "a scale per image": (lambda o: o(torch.zeros(3, 8), torch.zeros(3, 8), scale=torch.ones(3)), "one number"),
    "too few owners": (lambda o: o(torch.zeros(3, 8), torch.zeros(3, 8), owners=torch.arange(2)), "owners of shape"),
}  # fmt: skip


@pytest.mark.parametrize("mistake", WRONG)
def test_wrong_input_raises_a_clear_error(mistake, without_shape_checks):
    call, message = WRONG[mistake]
    with pytest.raises(ValueError, match=message):
        call(tercet.objective("triplet"))


@pytest.mark.parametrize("name", OBJECTIVES)
def test_an_array_is_told_how_to_become_a_tensor(name, without_shape_checks):
    array = np.eye(3, dtype=np.float32)
    for call in (tercet.objective(name).on_similarity, lambda x: tercet.objective(name)(x, x)):
        with pytest.raises(ValueError, match=r"must be a tensor, got ndarray; torch\.from_numpy"):
            call(array)


@every_objective
@pytest.mark.parametrize("value", [1e38, -torch.inf, torch.nan])
def test_the_similarity_of_an_ignored_pair_does_not_matter(name, settings, value):
    o, ignored = tercet.objective(name, **settings), torch.zeros_like(HOUSE)
    ignored[0, 7] = ignored[1, 5] = True
    expected = o.pair_gradient(NOISE, HOUSE, ignored)
    changed = NOISE.masked_fill(ignored, value)
    assert torch.equal(o.pair_gradient(changed, HOUSE, ignored), expected)
    assert torch.equal(o.on_similarity(changed, HOUSE, ignored), o.on_similarity(NOISE, HOUSE, ignored))


def test_a_hinge_is_never_negative_in_float32():
    similarity = torch.cat([torch.tensor([[0.7]]), 0.5 + 1e-7 * torch.rand(1, 500)], dim=1)
    positives = torch.zeros(1, 501, dtype=torch.bool)
    positives[0, 0] = True
    assert tercet.objective("triplet").value(similarity, positives) >= 0
