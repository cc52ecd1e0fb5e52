"""Compile every objective as one graph and compare with eager: test_compile.py runs it in a separate process.

The shape checkers of the test run cannot be traced, and users do not have them.
"""

import torch

import tercet
from tercet.objectives import OBJECTIVES

OWNERS = torch.arange(4).repeat_interleave(3)


def gradients(call, images, captions):
    x, y = images.clone().requires_grad_(), captions.clone().requires_grad_()
    scalar = call(x, y)
    scalar.backward()
    return scalar.detach(), x.grad, y.grad


def largest_difference(name):
    torch.compiler.reset()
    o = tercet.objective(name)
    generator = torch.Generator().manual_seed(0)
    images = torch.nn.functional.normalize(torch.randn(4, 8, generator=generator), dim=1)
    captions = torch.nn.functional.normalize(torch.randn(12, 8, generator=generator), dim=1)
    call = lambda x, y: o(x, y, owners=OWNERS)  # noqa: E731
    eager = gradients(call, images, captions)
    compiled = gradients(torch.compile(call, fullgraph=True), images, captions)
    return max(((a - b).abs() / (1 + b.abs())).max().item() for a, b in zip(compiled, eager, strict=True))


def own_gradient(similarity, positives):
    return (~positives).to(similarity.dtype) - positives.to(similarity.dtype)


if __name__ == "__main__":
    for name in [*OBJECTIVES, own_gradient]:
        print(getattr(name, "__name__", name), f"{largest_difference(name):.1e}", flush=True)
