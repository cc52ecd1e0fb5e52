"""The scalar behaves like a loss: its backward delivers upstream x pair gradient."""

import pytest
import torch

import tercet
from tercet.objectives import OBJECTIVES
from tests.objectives.batches import CASES
from tests.objectives.named_settings import named

every_objective = pytest.mark.parametrize("name", OBJECTIVES)
IMAGES = torch.nn.functional.normalize(torch.randn(3, 8, generator=torch.Generator().manual_seed(0)), dim=1)
CAPTIONS = torch.nn.functional.normalize(torch.randn(15, 8, generator=torch.Generator().manual_seed(1)), dim=1)
OWNERS = torch.arange(3).repeat_interleave(5)


@every_objective
def test_backward_delivers_upstream_times_the_pair_gradient(name):
    o, case = tercet.objective(name), CASES["house 3 x 15, ignored pairs"]
    similarity = case.similarity.clone().requires_grad_()
    scalar = o.on_similarity(similarity, *case[1:])
    torch.testing.assert_close(scalar.detach(), o.value(*case) if o.has_value else o.monitor(*case), rtol=1e-14, atol=0)
    (-3.5 * scalar).backward()
    torch.testing.assert_close(similarity.grad, -3.5 * o.pair_gradient(*case), rtol=0, atol=1e-14)


@every_objective
def test_gradients_accumulate(name):
    o, case = tercet.objective(name), CASES["ragged 4 x 10"]
    similarity = case.similarity.clone().requires_grad_()
    for _ in range(2):
        (o.on_similarity(similarity, case.positives) / 2).backward()
    torch.testing.assert_close(similarity.grad, o.pair_gradient(*case[:2]), rtol=0, atol=1e-14)


@every_objective
def test_owners_ids_and_positives_are_equivalent(name):
    o = tercet.objective(name)
    positives = torch.arange(3)[:, None] == OWNERS[None, :]
    expected = o.on_similarity(IMAGES @ CAPTIONS.T, positives)
    assert torch.equal(o(IMAGES, CAPTIONS, owners=OWNERS), expected)
    ids = torch.tensor([9, 4, 7])
    assert torch.equal(o(IMAGES, CAPTIONS, image_ids=ids, caption_ids=ids[OWNERS]), expected)
    assert torch.equal(o(IMAGES, CAPTIONS[::5]), o.on_similarity(IMAGES @ CAPTIONS[::5].T))


@every_objective
def test_scale_and_bias_get_the_gradient_of_plain_autograd(name):
    o = named(name)
    leaves = [IMAGES.double(), CAPTIONS.double(), torch.tensor(3.0).double(), torch.tensor(-0.5).double()]
    ours = [leaf.clone().requires_grad_() for leaf in leaves]
    o(ours[0], ours[1], owners=OWNERS, scale=ours[2], bias=ours[3]).backward()
    plain = [leaf.clone().requires_grad_() for leaf in leaves]
    similarity = plain[2] * (plain[0] @ plain[1].T) + plain[3]
    similarity.backward(o.pair_gradient(similarity.detach(), torch.arange(3)[:, None] == OWNERS[None, :]))
    for actual, expected in zip(ours, plain, strict=True):
        torch.testing.assert_close(actual.grad, expected.grad, rtol=1e-12, atol=1e-12)


@every_objective
def test_float32_agrees_with_float64(name):
    o, case = tercet.objective(name), CASES["house 3 x 15"]
    in_float32 = o.pair_gradient(case.similarity.float(), case.positives)
    assert in_float32.dtype == torch.float32
    torch.testing.assert_close(in_float32.double(), o.pair_gradient(*case[:2]), rtol=1e-4, atol=1e-5)


@every_objective
def test_bfloat16_autocast_trains(name):
    """S is bfloat16; the objective computes in float32 and returns a bfloat16 gradient."""
    o = tercet.objective(name)
    images, captions = IMAGES.clone().requires_grad_(), CAPTIONS.clone().requires_grad_()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        scalar = o(images, captions, owners=OWNERS)
    scalar.backward()
    assert scalar.dtype == torch.float32
    assert images.grad.dtype == torch.float32
    rounded = (IMAGES.bfloat16() @ CAPTIONS.bfloat16().T).float()
    gradient = o.pair_gradient(rounded, torch.arange(3)[:, None] == OWNERS[None, :])
    torch.testing.assert_close(images.grad, gradient @ CAPTIONS, rtol=0.05, atol=0.02 * gradient.abs().max().item())


@every_objective
def test_a_loss_scale_is_multiplied_in_float32_and_rounded_once(name):
    o, case = tercet.objective(name), CASES["house 3 x 15"]
    similarity = case.similarity.bfloat16().requires_grad_()
    (o.on_similarity(similarity, case.positives) * 1000.0).backward()
    wide = o.pair_gradient(case.similarity.bfloat16().float(), case.positives)
    assert torch.equal(similarity.grad, (wide * 1000.0).bfloat16())


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
@pytest.mark.parametrize("size", [1, 2, 7])
@every_objective
def test_the_diagonal_has_the_general_value_and_gradient(name, size, dtype):
    """Some objectives have a shorter formula for a square batch with positives on the diagonal."""
    for reduction in ("sum", "mean"):
        o = tercet.objective(name, reduction=reduction)
        generator = torch.Generator().manual_seed(size)
        values = torch.empty(size, size, dtype=dtype).uniform_(-0.3, 0.9, generator=generator)
        results = []
        for positives in (None, torch.eye(size, dtype=torch.bool)):
            similarity = values.clone().requires_grad_()
            scalar = o.on_similarity(similarity, positives)
            (2.0 * scalar).backward()
            results.append((scalar.detach(), similarity.grad))
        torch.testing.assert_close(results[0], results[1], rtol=1e-5, atol=1e-5 if dtype == torch.float32 else 1e-12)
