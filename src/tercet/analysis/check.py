"""The gradient contract: does anybody's objective deliver the gradient it claims, everywhere it is delivered?"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from tercet.analysis.two_processes import gradients_of_two_processes
from tercet.objectives import distributed
from tercet.objectives import objective as objective_of
from tercet.objectives.masks import as_rows, positives_from_ids
from tercet.objectives.members import Embedded, Members
from tercet.objectives.streaming import streamed_scalar

EXACT, DIFFERENCES, SINGLE = 1e-10, 1e-6, 1e-4  # tolerances, relative to the largest entry
TINY = 1e-300
NOTHING = "the gradient is zero everywhere on a batch in which negatives come close"


@dataclass(frozen=True)
class Check:
    """One question with its answer; `error` is None where the question does not apply."""

    name: str
    error: float | None
    tolerance: float
    note: str

    @property
    def passed(self) -> bool:
        return self.error is None or self.error <= self.tolerance

    def __str__(self) -> str:
        if self.error is None:
            return f"  --    {self.name:<24} not checked: {self.note}"
        if self.passed:
            return f"  ok    {self.name:<24} {self.error:.1e} <= {self.tolerance:.0e}"
        return f"  FAIL  {self.name:<24} {self.error:.1e} >  {self.tolerance:.0e}  {self.note}"


@dataclass(frozen=True)
class CheckReport:
    """What `check_objective` found; true where nothing failed. Print it."""

    objective: str
    checks: tuple[Check, ...]

    @property
    def passed(self) -> bool:
        return all(check.passed for check in self.checks)

    @property
    def failed(self) -> list[str]:
        return [check.name for check in self.checks if not check.passed]

    def __bool__(self) -> bool:
        return self.passed

    def __str__(self) -> str:
        verdict = "delivers the gradient it claims" if self.passed else f"FAILS: {', '.join(self.failed)}"
        return "\n".join([f"{self.objective} {verdict}", *map(str, self.checks)])


def check_objective(subject: Any, *, takes: str | None = None, processes: bool = True) -> CheckReport:
    """Check an objective's gradient against itself in every way that it can be delivered.

    `subject` is whatever `tercet.objective` takes, an object with the methods of an objective, or, with
    `takes="embeddings"`, any callable (images, captions) -> scalar loss, row i of both being a pair.
    `processes=False` leaves out the comparison with two processes, which takes a few seconds.
    """
    if takes not in (None, "embeddings"):
        raise ValueError(f"takes must be None or 'embeddings', got {takes!r}")
    if distributed.in_use():
        raise ValueError("check_objective starts processes of its own: call it outside torch.distributed")
    ids = takes is None
    if ids and not hasattr(subject, "pair_gradient"):
        subject = objective_of(subject)
    if getattr(subject, "takes_mined", False):
        subject = _WithMembers(subject)
    name = str(getattr(subject, "name", getattr(subject, "__name__", type(subject).__name__)))
    try:
        checks = _checks_of_an_objective(subject) if ids else _checks_of_a_loss(subject)
    except Exception as error:
        batch = "5 images x 12 captions with several positives" if ids else "5 pairs, in float64 and in float32"
        reason = f"raised {type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"
        return CheckReport(name, (Check("runs", math.inf, 0.0, f"{reason} on {batch}"),))
    checks.append(_two_processes(subject, ids) if processes else Check("two processes", None, EXACT, "left out"))
    return CheckReport(name, tuple(checks))


class _Batch:
    """Five images, each with one to four captions near it, in float64; `paired` takes one caption an image."""

    def __init__(self, paired: bool = False) -> None:
        generator = torch.Generator().manual_seed(0)
        self.image_ids = torch.tensor([3, 1, 4, 7, 5])
        self.caption_ids = self.image_ids if paired else torch.tensor([3, 1, 4, 7, 5, 3, 3, 1, 4, 4, 3, 7])
        owners = (self.image_ids[None, :] == self.caption_ids[:, None]).int().argmax(dim=1)
        images = torch.randn(5, 4, generator=generator, dtype=torch.float64)
        noise = torch.randn(len(owners), 4, generator=generator, dtype=torch.float64)
        self.images = torch.nn.functional.normalize(images, dim=1)
        self.captions = torch.nn.functional.normalize(self.images[owners] + 0.7 * noise, dim=1)
        self.similarity = self.images @ self.captions.T
        self.positives = positives_from_ids(self.image_ids, self.caption_ids)

    def ids(self) -> dict[str, Tensor]:
        return {"image_ids": self.image_ids, "caption_ids": self.caption_ids}


class _WithMembers:
    """An objective whose positive pairs have the same mined members in every check."""

    def __init__(self, objective: Any) -> None:
        self.objective, self.name, self.has_value = objective, objective.name, objective.has_value
        self.batch = _Batch()
        generator = torch.Generator().manual_seed(2)
        pairs = int(self.batch.positives.sum())
        drawn = torch.randn(2, pairs, 2, 4, generator=generator, dtype=torch.float64)
        self.members = Members(*torch.nn.functional.normalize(drawn, dim=3))
        ids = self.batch.image_ids, self.batch.caption_ids
        self.mined = self.members.similarity(Embedded(self.batch.images, self.batch.captions, ids, None, None))

    def value(self, S: Tensor, positives: Tensor) -> Tensor:
        found: Tensor = self.objective.value(S, positives, mined=self.mined.to(S.dtype))
        return found

    def pair_gradient(self, S: Tensor, positives: Tensor) -> Tensor:
        found: Tensor = self.objective.pair_gradient(S, positives, mined=self.mined.to(S.dtype))
        return found

    def __call__(self, x: Tensor, y: Tensor, *, image_ids: Tensor, caption_ids: Tensor, **how: Any) -> Tensor:
        """In several processes with the members of one's own images."""
        own = torch.isin(self.batch.image_ids[self.batch.positives.nonzero()[:, 0]], image_ids)
        mined = Members(*(side[own].to(x.dtype) for side in self.members))
        found: Tensor = self.objective(x, y, image_ids=image_ids, caption_ids=caption_ids, mined=mined, **how)
        return found

    def products(self) -> dict[str, Tensor]:
        """What arrives at the embeddings by way of the members."""
        image, caption = self.batch.positives.nonzero(as_tuple=True)
        slopes = self.objective.mined_gradient(self.batch.similarity, self.batch.positives, mined=self.mined)
        return {
            "images": torch.zeros_like(self.batch.images).index_add_(
                0, image, slopes[:, :1] * self.members.captions[:, 0]
            ),
            "captions": torch.zeros_like(self.batch.captions).index_add_(
                0, caption, slopes[:, 1:2] * self.members.images[:, 0]
            ),
        }


def _checks_of_an_objective(subject: Any) -> list[Check]:
    batch = _Batch()
    claimed = subject.pair_gradient(batch.similarity, batch.positives)
    checks = []
    if getattr(subject, "has_value", False):
        s = batch.similarity.clone().requires_grad_()
        (by_autograd,) = torch.autograd.grad(subject.value(s, batch.positives), s)
        by_differences = _differences(lambda s: subject.value(s, batch.positives), batch.similarity)
        checks += [
            _compare("autograd of value", {"S": claimed}, {"S": by_autograd}, EXACT),
            _compare("finite differences", {"S": claimed}, {"S": by_differences}, DIFFERENCES),
        ]
    else:
        no_value = "it has no value, so no loss to differentiate"
        checks += [Check(each, None, EXACT, no_value) for each in ("autograd of value", "finite differences")]
    checks.append(_descent(claimed, batch))
    delivered = _delivered(lambda x, y: subject(x, y, **batch.ids()), batch)
    products = {"images": claimed @ batch.captions, "captions": claimed.T @ batch.images}
    if isinstance(subject, _WithMembers):
        products = {side: product + subject.products()[side] for side, product in products.items()}
    expected = {"scalar": delivered["scalar"], **products}
    checks += [
        _compare("delivered to embeddings", delivered, expected, EXACT, "is a term missing, or one too many?"),
        _upstream(lambda x, y: subject(x, y, **batch.ids()), batch),
    ]
    if isinstance(subject, _WithMembers):
        one_tile = _delivered(lambda x, y: subject(x, y, streamed=True, **batch.ids()), batch)
        checks.append(_compare("streamed", one_tile, expected, EXACT, "in one tile"))
    elif getattr(subject, "can_stream", False):
        one_tile = _delivered(lambda x, y: subject(x, y, streamed=True, **batch.ids()), batch)
        ids = batch.image_ids, batch.caption_ids
        many_tiles = _delivered(lambda x, y: streamed_scalar(subject, x, y, ids, side=3), batch)
        checks += [
            _compare("streamed", one_tile, expected, EXACT, "in one tile"),
            _compare("streamed in tiles", many_tiles, expected, EXACT, "in tiles of 3 x 3"),
        ]
    else:
        checks.append(Check("streamed", None, EXACT, "it needs the whole similarity at once"))
    single = subject.pair_gradient(batch.similarity.float(), batch.positives).double()
    checks.append(_compare("float32", {"S": single}, {"S": claimed}, SINGLE))
    return checks


def _checks_of_a_loss(loss: Callable[[Tensor, Tensor], Tensor]) -> list[Check]:
    batch = _Batch(paired=True)
    delivered = _delivered(loss, batch)
    if not any(delivered[part].any() for part in ("images", "captions")):
        return [Check("not zero", math.inf, 0.0, NOTHING)]
    by_differences = {
        "images": _differences(lambda x: loss(x, batch.captions), batch.images),
        "captions": _differences(lambda y: loss(batch.images, y), batch.captions),
    }
    single = _delivered(lambda x, y: loss(x.float(), y.float()), batch)
    return [
        _compare("finite differences", delivered, by_differences, DIFFERENCES),
        _upstream(loss, batch),
        _compare("float32", single, delivered, SINGLE),
    ]


def _delivered(call: Callable[[Tensor, Tensor], Tensor], batch: _Batch, upstream: float = 1.0) -> dict[str, Tensor]:
    images, captions = batch.images.clone().requires_grad_(), batch.captions.clone().requires_grad_()
    scalar = upstream * call(images, captions)
    scalar.backward()
    found = {"scalar": scalar.detach().double()}
    for name, leaf in (("images", images), ("captions", captions)):
        found[name] = torch.zeros_like(leaf) if leaf.grad is None else leaf.grad
    return found


def _upstream(call: Callable[[Tensor, Tensor], Tensor], batch: _Batch) -> Check:
    """A loss scale, accumulation or a weight beside other losses reaches an objective only as upstream gradient."""
    expected = {name: 3.5 * gradient for name, gradient in _delivered(call, batch).items()}
    hint = "3.5 x the scalar must deliver 3.5 x the gradient: does backward ignore what comes in?"
    return _compare("upstream gradient", _delivered(call, batch, upstream=3.5), expected, EXACT, hint)


def _descent(claimed: Tensor, batch: _Batch) -> Check:
    """The sign: a small step along -G must bring positives closer than it brings negatives, in total."""
    if not claimed.any():
        return Check("sign", math.inf, 0.0, NOTHING)
    rows = as_rows(batch.similarity, batch.positives, None)
    pulled = -(claimed * rows.positives).sum() / rows.positives.sum()
    pushed = (claimed * rows.negatives).sum() / rows.negatives.sum()
    wrong = max(0.0, -float(pulled + pushed))
    moves = f"a step along -G moves positives by {float(pulled):+.2e} and negatives by {-float(pushed):+.2e}"
    return Check("sign", wrong, 0.0, f"{moves}: is the sign right?")


def _two_processes(call: Any, ids: bool) -> Check:
    batch = _Batch(paired=not ids)
    found = gradients_of_two_processes(call, batch.images, batch.captions, batch.ids() if ids else None)
    if isinstance(found, str):
        return Check("two processes", None if found.startswith("not here") else float("inf"), EXACT, found)
    hint = "after averaging over ranks, as DDP does, against one process on the whole batch"
    return _compare("two processes", *found, EXACT, hint)


def _differences(function: Callable[[Tensor], Tensor], at: Tensor, step: float = 1e-6) -> Tensor:
    """Central differences, entry by entry."""
    gradient = torch.zeros_like(at)
    with torch.no_grad():
        for place in torch.cartesian_prod(*(torch.arange(size) for size in at.shape)).tolist():
            move = torch.zeros_like(at)
            move[tuple(place)] = step
            gradient[tuple(place)] = (function(at + move) - function(at - move)) / (2 * step)
    return gradient


def _compare(
    name: str, actual: dict[str, Tensor], expected: dict[str, Tensor], tolerance: float, hint: str = ""
) -> Check:
    """The largest disagreement, relative to the largest entry of its part, and where it stands."""
    worst, note = 0.0, ""
    for part, wanted in expected.items():
        size = max(wanted.abs().max().item(), actual[part].abs().max().item(), TINY)
        error = (actual[part].double() - wanted.double()).abs() / size
        error = torch.where(error.isnan(), torch.inf, error)
        if error.numel() and error.max() > worst:
            place = torch.unravel_index(error.argmax(), error.shape)
            worst, index = error.max().item(), ", ".join(str(int(each)) for each in place)
            at = f"{part}[{index}]" if index else part
            note = f"at {at}: {wanted[place].item():.6g} expected, {actual[part][place].item():.6g} found"
    return Check(name, worst, tolerance, "; ".join(filter(None, [note, hint])))
