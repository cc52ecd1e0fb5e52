"""The rows of `check_objective` for a loss of other programs, which is called with embeddings.

It is called as `loss(x, y)`, as `loss(x, y, scale)`, `loss(x, y, scale, bias)`, or as pytorch-metric-learning's
`loss(x, labels, ref_emb=y, ref_labels=labels)`. The rows say what training loops do with it: scaled upstream gradients,
a GradScaler, accumulated parts of a batch, and two processes that gather negatives or do not.
"""

import copy
import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from tercet.analysis.gradcheck import (
    EXACT,
    FINITE_DIFFERENCES,
    FLOAT32,
    TINY,
    UNAVAILABLE,
    ZERO_GRADIENT,
    Check,
    CheckBatch,
    compare,
    finite_differences,
    gradients_of_two_processes,
    mean_of_shards,
)
from tercet.objectives.inputs import is_distributed

Leaves = dict[str, Tensor]
Call = Callable[[Leaves], Tensor]
PAIRS, PAIRS_OF_RANKS = 5, 4  # losses of other programs need ranks of equal size
SCALE, BIAS = 3.0, -1.0
NEGLIGIBLE = 1e-3  # of the largest gradient
LOSS_SCALE = 2.0**16  # GradScaler's first


def check_loss(subject: Callable[..., Any], takes: str, processes: bool) -> list[Check]:
    """Check a loss on five pairs: is its gradient right, and does it stay so inside the loops of trainers?"""
    loss = _Repeated(subject, takes)
    at = _leaves(takes)
    kind = _kind_of(loss, at)
    if kind is not None and not loss.repeatable:
        return [kind]
    delivered = _delivered(loss, at)
    if not any(delivered[name].any() for name in ("images", "captions")):
        return [Check("not zero", math.inf, 0.0, ZERO_GRADIENT)]
    by_differences = {name: finite_differences(_along(loss, at, name), leaf) for name, leaf in at.items()}
    in_float32 = _delivered(loss, {name: leaf.float() for name, leaf in at.items()})
    scaled = {name: 3.5 * gradient for name, gradient in delivered.items()}
    hint = "3.5 x the scalar must deliver 3.5 x the gradient: does backward ignore the upstream gradient?"
    checks = [] if kind is None else [kind]
    checks += [
        _compare("finite differences", delivered, by_differences, FINITE_DIFFERENCES),
        _compare("upstream gradient", _delivered(loss, at, 3.5), scaled, EXACT, hint),
        _compare("float32", in_float32, delivered, FLOAT32),
        _grad_scaler(loss, at),
        *_accumulation(loss, at, delivered, by_differences),
    ]
    two = _two_processes(subject, takes) if processes else Check("two processes", None, EXACT, "skipped")
    return [*checks, two]


class _Repeated:
    """The loss, called each time with the same random numbers and from the state that it had at first."""

    def __init__(self, subject: Callable[..., Any], takes: str) -> None:
        self.subject, self.takes, self.repeatable = subject, takes, True

    def __call__(self, leaves: Leaves) -> Tensor:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            return _called(_copied(self.subject), self.takes, leaves)


def _copied(subject: Callable[..., Any]) -> Callable[..., Any]:
    """A copy, so that a memory in it starts as it was; the subject itself where it cannot be copied."""
    try:
        return copy.deepcopy(subject)
    except Exception:  # a process group, a lock, a generator
        return subject


def _called(subject: Callable[..., Any], takes: str, leaves: Leaves) -> Tensor:
    images, captions = leaves["images"], leaves["captions"]
    if takes == "labels":
        labels = torch.arange(len(images)) + (PAIRS * torch.distributed.get_rank() if is_distributed() else 0)
        returned = subject(images, labels, ref_emb=captions, ref_labels=labels.clone())
    else:
        returned = subject(images, captions, *(leaves[name] for name in ("scale", "bias") if name in leaves))
    if isinstance(returned, dict):  # trainers add all of them
        returned = sum(returned.values())
    if not isinstance(returned, Tensor) or returned.numel() != 1:
        got = tuple(returned.shape) if isinstance(returned, Tensor) else type(returned).__name__
        raise ValueError(f"expected a scalar loss, got {got}")
    return returned.reshape(())


def _leaves(takes: str) -> Leaves:
    batch = CheckBatch()
    leaves = {"images": batch.images, "captions": batch.captions[:PAIRS]}
    numbers = {"scale": SCALE, "bias": BIAS}
    return leaves | {name: torch.tensor(value).double() for name, value in numbers.items() if name in takes.split()}


def _kind_of(loss: _Repeated, at: Leaves) -> Check | None:
    """A row on a loss that is random or remembers its calls; it says whether anything can be measured."""
    subject, takes = loss.subject, loss.takes
    with torch.no_grad(), torch.random.fork_rng(devices=[]):
        values = []
        for seed in (0, 0, 1):
            torch.manual_seed(seed)
            values.append(_called(_copied(subject), takes, at))
        torch.manual_seed(0)
        once = _copied(subject)
        called_twice = []
        for _ in range(2):
            torch.manual_seed(0)
            called_twice.append(_called(once, takes, at))
    if not _same(values[0], values[1]):
        loss.repeatable = False
        note = "the same input and random numbers give other values: its state cannot be copied, so nothing is compared"
        return Check("repeatable", math.inf, 0.0, f"{note}; make it a torch.nn.Module with buffers")
    if not _same(*called_twice):
        return Check("repeatable", None, 0.0, "it remembers earlier calls; every row has its first state", advice=True)
    if not _same(values[0], values[2]):
        return Check("repeatable", None, 0.0, "it draws random numbers; every row draws the same", advice=True)
    return None


def _same(one: Tensor, other: Tensor) -> bool:
    return torch.equal(one.nan_to_num(), other.nan_to_num())


def _delivered(loss: Call, at: Leaves, upstream: float = 1.0) -> Leaves:
    """The scalar, and the gradients that backward delivers."""
    leaves = {name: leaf.detach().clone().requires_grad_() for name, leaf in at.items()}
    scalar = upstream * loss(leaves)
    scalar.backward()
    return {"scalar": scalar.detach().double()} | _gradients(leaves)


def _gradients(leaves: Leaves) -> Leaves:
    return {name: torch.zeros_like(leaf) if leaf.grad is None else leaf.grad for name, leaf in leaves.items()}


def _compare(name: str, actual: Leaves, expected: Leaves, tolerance: float, hint: str = "") -> Check:
    """A softmax does not depend on a bias: rounding of its gradient is compared with the largest gradient."""
    largest = max((gradient.abs().max().item() for key, gradient in expected.items() if key != "scalar"), default=0.0)
    return compare(name, actual, expected, tolerance, hint, floor=max(TINY, NEGLIGIBLE * largest))


def _along(loss: Call, at: Leaves, name: str) -> Callable[[Tensor], Tensor]:
    return lambda value: loss(at | {name: value})


def _grad_scaler(loss: Call, at: Leaves) -> Check:
    """The gradient in float32 after GradScaler's scaling and unscaling."""
    leaves = {name: leaf.float().requires_grad_() for name, leaf in at.items()}
    scaler = torch.amp.GradScaler("cpu", init_scale=LOSS_SCALE)
    optimizer = torch.optim.SGD(leaves.values(), lr=0.0)
    scaler.scale(loss(leaves)).backward()
    scaler.unscale_(optimizer)
    plain = _delivered(loss, {name: leaf.float() for name, leaf in at.items()})
    del plain["scalar"]
    hint = f"the loss was scaled by {LOSS_SCALE:g}, the gradient divided by it"
    return _compare("GradScaler", _gradients(leaves), plain, FLOAT32, hint)


def _accumulation(loss: Call, at: Leaves, delivered: Leaves, by_differences: Leaves) -> list[Check]:
    """As loops with cached embeddings accumulate: the whole batch each time, with one part of it in the graph."""
    rows, parts = len(at["images"]), 2
    leaves = {name: leaf.detach().clone().requires_grad_() for name, leaf in at.items()}
    for part in torch.arange(rows).chunk(parts):
        in_graph = torch.isin(torch.arange(rows), part)[:, None]
        sides = {name: torch.where(in_graph, leaves[name], leaves[name].detach()) for name in ("images", "captions")}
        loss(leaves | sides).backward()
    found = _gradients(leaves)
    sides = {name: delivered[name] for name in ("images", "captions")}
    checks = [_compare("accumulation", found, sides, EXACT, "parts of a batch with cached embeddings")]
    factors: Leaves = {name: by_differences[name] for name in by_differences if name in ("scale", "bias")}
    if factors:
        hint = f"backward of all {parts} parts adds its gradient {parts} times: divide it by that number"
        check = _compare("accumulated scale", found, factors, FINITE_DIFFERENCES)
        checks.append(Check(check.name, check.error, FINITE_DIFFERENCES, "" if check.passed else hint, advice=True))
    return checks


def _two_processes(subject: Callable[..., Any], takes: str) -> Check:
    """Averaged over ranks as in DDP: the gradient of one process on the whole batch, or what it is instead."""
    factors = {name: leaf for name, leaf in _leaves(takes).items() if name in ("scale", "bias")}

    def call(images: Tensor, captions: Tensor) -> Tensor:
        return _called(subject, takes, {"images": images, "captions": captions, **factors})

    images, captions = (_leaves(takes)[name][:PAIRS_OF_RANKS] for name in ("images", "captions"))
    result = gradients_of_two_processes(call, images, captions, None, cut=PAIRS_OF_RANKS // 2)
    if isinstance(result, str):
        return Check("two processes", None if result.startswith(UNAVAILABLE) else math.inf, EXACT, result)
    averaged, whole = result
    hint = "averaged over ranks, as in DDP, compared with one process on the whole batch"
    check = _compare("two processes", averaged, whole, EXACT, hint)
    if check.passed:
        return check
    alone = mean_of_shards(call, images, captions, cut=PAIRS_OF_RANKS // 2)
    return Check(check.name, check.error, check.tolerance, _explained(averaged, whole, alone))


def _explained(averaged: Leaves, whole: Leaves, alone: Leaves) -> str:
    """Which known mistake the gradient of two processes is."""
    encoders = [name for name in whole if name != "scalar"]
    known = {
        "negatives are not gathered: it is the mean of what each rank has alone": alone,
        "half of it: rows of the other rank are gathered without gradient": {n: whole[n] / 2 for n in encoders},
        "twice it: the loss is multiplied by the number of processes, or gathered twice": {
            n: 2 * whole[n] for n in encoders
        },
    }
    for explanation, gradients in known.items():
        if _compare("", averaged, {name: gradients[name] for name in encoders}, EXACT).passed:
            return explanation
    return "averaged over ranks, as in DDP, it is not the gradient of one process on the whole batch"
