"""Stacked heads project and differentiate as each model does alone."""

import pytest
import torch

from tercet.models import build
from tercet.models.heads import StackedHeads


def heads(seed, kind="linear"):
    torch.manual_seed(seed)
    return build("heads", image_dim=9, caption_dim=5, embed_dim=7, kind=kind).double()


@pytest.mark.parametrize("kind", ["linear", "mlp"])
def test_embeddings_and_gradients_are_those_of_each_model(kind):
    alone, together = ([heads(seed, kind) for seed in range(4)] for _ in range(2))
    stack = StackedHeads(together)
    generator = torch.Generator().manual_seed(0)
    rows = torch.randn(2, 6, 9, generator=generator, dtype=torch.float64)
    rows[0, 3] = 0
    upstream = torch.randn(2, 6, 7, generator=generator, dtype=torch.float64)
    encoding = stack.images.encode(rows, slice(1, 3))
    encoding.backward(upstream)
    for number, model in enumerate(alone[1:3]):
        embeddings = model.encode_images(rows[number])
        torch.testing.assert_close(encoding.embeddings[number], embeddings, rtol=0, atol=1e-14)
        embeddings.backward(upstream[number])
        encoding.write_gradients(number)
        for name, parameter in together[1 + number].image_head.named_parameters():
            expected = model.image_head.get_parameter(name).grad
            torch.testing.assert_close(parameter.grad, expected, rtol=0, atol=1e-13, msg=f"{name} of {number}")


def test_parameters_of_a_model_are_those_of_the_stack():
    models = [heads(seed) for seed in range(3)]
    values = [model.caption_head.linear.weight.detach().clone() for model in models]
    stack = StackedHeads(models)
    assert torch.equal(stack.captions.linear.weight, torch.stack(values))
    models[1].load_state_dict(heads(9).state_dict())
    with torch.no_grad():
        models[2].caption_head.linear.bias.fill_(2.0)
    assert torch.equal(stack.captions.linear.weight[1], heads(9).caption_head.linear.weight)
    assert torch.equal(stack.captions.linear.weight[0], values[0])
    assert stack.captions.linear.bias[2].eq(2.0).all()
