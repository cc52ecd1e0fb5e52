"""Gradient check of an objective: does it deliver the gradient that it claims?

`check_objective` compares the pair gradient with autograd and finite differences of the value, checks its sign, and
checks what arrives at the embeddings: dense, streamed, scaled by an upstream gradient, in float32, and on two
processes that each hold a part of the batch.
"""

import math
import multiprocessing
import sys
import tempfile
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from tercet.objectives import objective as objective_of
from tercet.objectives.aoq import AOQ, MinedEmbeddings
from tercet.objectives.inputs import BatchFacts, as_rows, is_distributed, positives_from_ids
from tercet.objectives.streaming.autograd import streamed_scalar
from tercet.objectives.streaming.tiles import EmbeddedBatch

TIMEOUT = 120  # seconds for two processes
RANK_0_SIZES = {"images": 3, "captions": 7}  # rows on rank 0 if images and captions are not paired by rows
# Tolerances, relative to the largest entry.
EXACT = 1e-10
FINITE_DIFFERENCES = 1e-6
FLOAT32 = 1e-4
TINY = 1e-300  # avoids 0 / 0
UNAVAILABLE = "not available"
TAKES = ("embeddings", "scale", "scale and bias", "labels")
ZERO_GRADIENT = "the gradient is zero everywhere on a batch with hard negatives"


@dataclass(frozen=True)
class Check:
    """The result of one check; `error` is None if the check does not apply."""

    name: str
    error: float | None
    tolerance: float
    note: str
    advice: bool = False
    """Not a fault of the objective, but of a loop that does not know."""

    @property
    def passed(self) -> bool:
        return self.advice or self.error is None or self.error <= self.tolerance

    def __str__(self) -> str:
        if self.advice and self.note:
            return f"  note  {self.name:<24} {self.note}"
        if self.error is None:
            return f"  --    {self.name:<24} not checked: {self.note}"
        if self.passed:
            return f"  ok    {self.name:<24} {self.error:.1e} <= {self.tolerance:.0e}"
        return f"  FAIL  {self.name:<24} {self.error:.1e} >  {self.tolerance:.0e}  {self.note}"


@dataclass(frozen=True, repr=False)
class CheckReport:
    """The result of `check_objective`; true if no check failed. Print it to see all checks."""

    objective: str
    checks: tuple[Check, ...]

    @property
    def passed(self) -> bool:
        return all(check.passed for check in self.checks)

    @property
    def failed(self) -> list[str]:
        """The names of the failed checks."""
        return [check.name for check in self.checks if not check.passed]

    def __bool__(self) -> bool:
        return self.passed

    def __repr__(self) -> str:
        verdict = f"failed: {', '.join(self.failed)}" if self.failed else "passed"
        return f"CheckReport({self.objective}, {len(self.checks)} checks, {verdict})"

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:
        """All checks, in a notebook."""
        printer.text(str(self))

    def __str__(self) -> str:
        verdict = "delivers the gradient it claims" if self.passed else f"FAILS: {', '.join(self.failed)}"
        return "\n".join([f"{self.objective} {verdict}", *map(str, self.checks)])


def check_objective(subject: Any, *, takes: str | None = None, processes: bool = True) -> CheckReport:
    """Check that an objective delivers the gradient that it claims, on every path to the embeddings.

    `subject` is whatever `tercet.objective` accepts, an object with the methods of an objective, or, with `takes`, any
    loss, where row i of both sides is a pair:

    - `"embeddings"`: `loss(images, captions)`; it may return a dict, whose values are added
    - `"scale"`, `"scale and bias"`: `loss(images, captions, scale)` and `loss(images, captions, scale, bias)` with
      learned factors, as `ClipLoss` and `SigLipLoss` of open_clip
    - `"labels"`: `loss(embeddings, labels, ref_emb=..., ref_labels=...)`, as in pytorch-metric-learning

    `processes=False` skips the check with two processes, which takes a few seconds.
    """
    if takes not in (None, *TAKES):
        raise ValueError(f"takes must be None or {', '.join(map(repr, TAKES))}, got {takes!r}")
    if is_distributed():
        raise ValueError("check_objective starts its own processes: call it outside torch.distributed")
    if takes is not None:
        from tercet.analysis.loss_check import check_loss

        return _report(subject, lambda: check_loss(subject, takes, processes), "5 pairs, in float64 and in float32")
    if not hasattr(subject, "pair_gradient"):
        try:
            subject = objective_of(subject)
        except ValueError as error:
            if "changes between calls" not in str(error):
                raise
            return CheckReport(_name(subject), (Check("repeatable", math.inf, 0.0, str(error)),))
    if isinstance(subject, AOQ):
        subject = _WithMined(subject)
    report = _report(subject, lambda: _check_pair_gradient(subject), "5 images x 12 captions with several positives")
    if report.failed == ["runs"]:
        return report
    two = _two_processes(subject) if processes else Check("two processes", None, EXACT, "skipped")
    return CheckReport(report.objective, (*report.checks, two))


def _report(subject: Any, checks: Callable[[], list[Check]], batch: str) -> CheckReport:
    try:
        return CheckReport(_name(subject), tuple(checks()))
    except Exception as error:
        reason = f"raised {type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"
        return CheckReport(_name(subject), (Check("runs", math.inf, 0.0, f"{reason} on {batch}"),))


def _name(subject: Any) -> str:
    return str(getattr(subject, "name", getattr(subject, "__name__", type(subject).__name__)))


class CheckBatch:
    """Five images with one to four similar captions each, in float64."""

    def __init__(self) -> None:
        generator = torch.Generator().manual_seed(0)
        self.image_ids = torch.tensor([3, 1, 4, 7, 5])
        self.caption_ids = torch.tensor([3, 1, 4, 7, 5, 3, 3, 1, 4, 4, 3, 7])
        owners = (self.image_ids[None, :] == self.caption_ids[:, None]).int().argmax(dim=1)
        images = torch.randn(5, 4, generator=generator, dtype=torch.float64)
        noise = torch.randn(len(owners), 4, generator=generator, dtype=torch.float64)
        self.images = torch.nn.functional.normalize(images, dim=1)
        self.captions = torch.nn.functional.normalize(self.images[owners] + 0.7 * noise, dim=1)
        self.similarity = self.images @ self.captions.T
        self.positives = positives_from_ids(self.image_ids, self.caption_ids)

    def ids(self) -> dict[str, Tensor]:
        return {"image_ids": self.image_ids, "caption_ids": self.caption_ids}


class _WithMined:
    """An objective with mined negatives, which are the same in every check."""

    def __init__(self, objective: AOQ) -> None:
        self.objective, self.name, self.has_value = objective, objective.name, objective.has_value
        self.batch = CheckBatch()
        generator = torch.Generator().manual_seed(2)
        pairs = int(self.batch.positives.sum())
        embeddings = torch.randn(2, pairs, 2, 4, generator=generator, dtype=torch.float64)
        self.negatives = MinedEmbeddings(*torch.nn.functional.normalize(embeddings, dim=3))
        ids = self.batch.image_ids, self.batch.caption_ids
        self.mined = self.negatives.similarity(EmbeddedBatch(self.batch.images, self.batch.captions, ids))

    def value(self, S: Tensor, positives: Tensor) -> Tensor:
        value: Tensor = self.objective.value(S, positives, mined=self.mined.to(S.dtype))
        return value

    def pair_gradient(self, S: Tensor, positives: Tensor) -> Tensor:
        gradient: Tensor = self.objective.pair_gradient(S, positives, mined=self.mined.to(S.dtype))
        return gradient

    def __call__(self, x: Tensor, y: Tensor, *, image_ids: Tensor, caption_ids: Tensor, **options: Any) -> Tensor:
        """On two processes, each gives the mined negatives of its own images."""
        own = torch.isin(self.batch.image_ids[self.batch.positives.nonzero()[:, 0]], image_ids)
        mined = MinedEmbeddings(*(embeddings[own].to(x.dtype) for embeddings in self.negatives))
        scalar: Tensor = self.objective(x, y, image_ids=image_ids, caption_ids=caption_ids, mined=mined, **options)
        return scalar

    def products(self) -> dict[str, Tensor]:
        """The gradient of the embeddings through the similarities with mined negatives."""
        image, caption = self.batch.positives.nonzero(as_tuple=True)
        gradient = self.objective.mined_gradient(self.batch.similarity, self.batch.positives, mined=self.mined)
        return {
            "images": torch.zeros_like(self.batch.images).index_add_(
                0, image, gradient[:, :1] * self.negatives.captions[:, 0]
            ),
            "captions": torch.zeros_like(self.batch.captions).index_add_(
                0, caption, gradient[:, 1:2] * self.negatives.images[:, 0]
            ),
        }


def _check_pair_gradient(subject: Any) -> list[Check]:
    batch = CheckBatch()
    if getattr(subject, "asks", None):
        subject = subject.given(BatchFacts(batch.image_ids, batch.caption_ids, batch.images, batch.captions, 0))
    claimed = subject.pair_gradient(batch.similarity, batch.positives)
    checks = []
    if getattr(subject, "has_value", False):
        s = batch.similarity.clone().requires_grad_()
        (by_autograd,) = torch.autograd.grad(subject.value(s, batch.positives), s)
        by_differences = finite_differences(lambda s: subject.value(s, batch.positives), batch.similarity)
        checks += [
            compare("autograd of value", {"S": claimed}, {"S": by_autograd}, EXACT),
            compare("finite differences", {"S": claimed}, {"S": by_differences}, FINITE_DIFFERENCES),
        ]
    else:
        no_value = "it has no value to differentiate"
        checks += [Check(name, None, EXACT, no_value) for name in ("autograd of value", "finite differences")]
    checks.append(_sign(claimed, batch))
    delivered = _delivered(lambda x, y: subject(x, y, **batch.ids()), batch)
    products = {"images": claimed @ batch.captions, "captions": claimed.T @ batch.images}
    if isinstance(subject, _WithMined):
        products = {name: product + subject.products()[name] for name, product in products.items()}
    expected = {"scalar": delivered["scalar"], **products}
    checks += [
        compare("delivered to embeddings", delivered, expected, EXACT, "is a term missing or duplicated?"),
        _upstream(lambda x, y: subject(x, y, **batch.ids()), batch),
    ]
    if isinstance(subject, _WithMined):
        one_tile = _delivered(lambda x, y: subject(x, y, streamed=True, **batch.ids()), batch)
        checks.append(compare("streamed", one_tile, expected, EXACT, "in one tile"))
    elif getattr(subject, "can_stream", False):
        one_tile = _delivered(lambda x, y: subject(x, y, streamed=True, **batch.ids()), batch)
        ids = batch.image_ids, batch.caption_ids
        many_tiles = _delivered(lambda x, y: streamed_scalar(subject, EmbeddedBatch(x, y, ids), tile_size=3), batch)
        checks += [
            compare("streamed", one_tile, expected, EXACT, "in one tile"),
            compare("streamed in tiles", many_tiles, expected, EXACT, "in tiles of 3 x 3"),
        ]
    else:
        checks.append(Check("streamed", None, EXACT, "it needs the dense similarity"))
    in_float32 = subject.pair_gradient(batch.similarity.float(), batch.positives).double()
    checks.append(compare("float32", {"S": in_float32}, {"S": claimed}, FLOAT32))
    return checks


def _delivered(call: Callable[[Tensor, Tensor], Tensor], batch: CheckBatch, upstream: float = 1.0) -> dict[str, Tensor]:
    """The scalar, and the gradients that backward delivers to the embeddings."""
    images, captions = batch.images.clone().requires_grad_(), batch.captions.clone().requires_grad_()
    scalar = upstream * call(images, captions)
    scalar.backward()
    delivered = {"scalar": scalar.detach().double()}
    for name, leaf in (("images", images), ("captions", captions)):
        delivered[name] = _grad(leaf)
    return delivered


def _upstream(call: Callable[[Tensor, Tensor], Tensor], batch: CheckBatch) -> Check:
    """Loss scaling, gradient accumulation and loss weights reach an objective only as upstream gradient."""
    expected = {name: 3.5 * gradient for name, gradient in _delivered(call, batch).items()}
    hint = "3.5 x the scalar must deliver 3.5 x the gradient: does backward ignore the upstream gradient?"
    return compare("upstream gradient", _delivered(call, batch, upstream=3.5), expected, EXACT, hint)


def _sign(claimed: Tensor, batch: CheckBatch) -> Check:
    """A small step along -G must increase the mean similarity of positives relative to that of negatives."""
    if not claimed.any():
        return Check("sign", math.inf, 0.0, ZERO_GRADIENT)
    rows = as_rows(batch.similarity, batch.positives, None)
    pulled = -(claimed * rows.positives).sum() / rows.positives.sum()
    pushed = (claimed * rows.negatives).sum() / rows.negatives.sum()
    error = max(0.0, -float(pulled + pushed))
    changes = f"a step along -G changes positives by {float(pulled):+.2e} and negatives by {-float(pushed):+.2e}"
    return Check("sign", error, 0.0, f"{changes}: is the sign wrong?")


def _two_processes(call: Any) -> Check:
    batch = CheckBatch()
    result = gradients_of_two_processes(call, batch.images, batch.captions, batch.ids())
    if isinstance(result, str):
        return Check("two processes", None if result.startswith(UNAVAILABLE) else float("inf"), EXACT, result)
    hint = "averaged over ranks, as in DDP, compared with one process on the whole batch"
    return compare("two processes", *result, EXACT, hint)


def finite_differences(function: Callable[[Tensor], Tensor], at: Tensor, step: float = 1e-6) -> Tensor:
    """Gradient by central differences, entry by entry."""
    gradient = torch.zeros_like(at)
    with torch.no_grad():
        for index in product(*map(range, at.shape)):  # one empty index for a number
            change = torch.zeros_like(at)
            change[index] = step
            gradient[index] = (function(at + change) - function(at - change)) / (2 * step)
    return gradient


def compare(
    name: str,
    actual: dict[str, Tensor],
    expected: dict[str, Tensor],
    tolerance: float,
    hint: str = "",
    *,
    floor: float = TINY,
) -> Check:
    """The largest difference, relative to the largest entry of its tensor or to `floor`, and its position."""
    worst, note = 0.0, ""
    for tensor_name, reference in expected.items():
        found = actual[tensor_name]
        largest = max(reference.abs().max().item(), found.abs().max().item(), floor)
        error = (found.double() - reference.double()).abs() / largest
        error = torch.where(error.isnan(), torch.inf, error)
        if error.numel() and error.max() > worst:
            position = torch.unravel_index(error.argmax(), error.shape)
            worst, index = error.max().item(), ", ".join(str(int(axis)) for axis in position)
            at = f"{tensor_name}[{index}]" if index else tensor_name
            note = f"at {at}: {reference[position].item():.6g} expected, {found[position].item():.6g} found"
    return Check(name, worst, tolerance, "; ".join(filter(None, [note, hint])))


# Two processes.


def gradients_of_two_processes(
    call: Any, images: Tensor, captions: Tensor, ids: dict[str, Tensor] | None, cut: int = RANK_0_SIZES["images"]
) -> tuple[dict[str, Tensor], dict[str, Tensor]] | str:
    """Gradients of two linear encoders: (averaged over two ranks, of one process), or why they are missing."""
    if not dist.is_available() or not dist.is_gloo_available():
        return f"{UNAVAILABLE}: this torch build has no gloo backend"
    if sys.platform == "win32" or dist.is_initialized():
        return f"{UNAVAILABLE}: this process cannot be forked"
    expected = _gradients(call, images, captions, ids)
    # fork works for callables that cannot be pickled. The children use one thread and no accelerator.
    context = multiprocessing.get_context("fork")
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        shards = _split(images, captions, ids, cut)
        ranks = [
            context.Process(target=_run_rank, args=(rank, call, shards[rank], folder), daemon=True) for rank in range(2)
        ]
        for process in ranks:
            process.start()
        for process in ranks:
            process.join(TIMEOUT)
        if any(process.exitcode != 0 for process in ranks):
            for process in ranks:
                process.kill()
            return _failure(Path(folder), ranks)
        by_rank = [torch.load(Path(folder) / f"{rank}.pt") for rank in range(2)]
    return {name: (by_rank[0][name] + by_rank[1][name]) / 2 for name in expected}, expected


def _gradients(call: Any, images: Tensor, captions: Tensor, ids: dict[str, Tensor] | None) -> dict[str, Tensor]:
    """The scalar, and the gradients of two linear encoders."""
    generator = torch.Generator().manual_seed(1)
    encoders = {
        name: torch.randn(images.shape[1], 4, generator=generator, dtype=torch.float64).requires_grad_()
        for name in ("images", "captions")
    }
    scalar = call(images @ encoders["images"], captions @ encoders["captions"], **(ids or {}))
    scalar.backward()
    return {"scalar": scalar.detach(), **{f"{name} encoder": _grad(encoder) for name, encoder in encoders.items()}}


def _grad(leaf: Tensor) -> Tensor:
    return torch.zeros_like(leaf) if leaf.grad is None else leaf.grad


def mean_of_shards(call: Any, images: Tensor, captions: Tensor, cut: int) -> dict[str, Tensor]:
    """The mean over ranks of the gradient of the rows of each, alone."""
    alone = [_gradients(call, *shard) for shard in _split(images, captions, None, cut)]
    return {name: sum(gradients[name] for gradients in alone) / len(alone) for name in alone[0]}  # type: ignore[misc]


def _split(images: Tensor, captions: Tensor, ids: dict[str, Tensor] | None, cut: int) -> list[tuple[Any, Any, Any]]:
    """(images, captions, ids) of each rank, the first with `cut` images."""
    cut_images, cut_captions = cut, RANK_0_SIZES["captions"] if ids else cut
    image_ids, caption_ids = (ids or {}).get("image_ids"), (ids or {}).get("caption_ids")
    first: Any = None
    second: Any = None
    if image_ids is not None and caption_ids is not None:
        first = {"image_ids": image_ids[:cut_images], "caption_ids": caption_ids[:cut_captions]}
        second = {"image_ids": image_ids[cut_images:], "caption_ids": caption_ids[cut_captions:]}
    return [
        (images[:cut_images], captions[:cut_captions], first),
        (images[cut_images:], captions[cut_captions:], second),
    ]


def _run_rank(rank: int, call: Any, shard: tuple[Any, Any, Any], folder: str) -> None:
    try:
        torch.set_num_threads(1)
        dist.init_process_group("gloo", init_method=f"file://{folder}/rendezvous", rank=rank, world_size=2)
        torch.save(_gradients(call, *shard), Path(folder) / f"{rank}.pt")
        dist.destroy_process_group()
    except BaseException as error:
        Path(folder, f"{rank}.error").write_text(f"{type(error).__name__}: {error}")
        raise SystemExit(1) from None


def _failure(folder: Path, ranks: list[Any]) -> str:
    """Why the ranks did not finish."""
    errors = [f"rank {path.stem}: {path.read_text().splitlines()[0]}" for path in sorted(folder.glob("*.error"))]
    stuck = [f"rank {rank} did not finish" for rank, process in enumerate(ranks) if process.exitcode is None]
    reason = "; ".join(errors or stuck or ["a process died"])
    # torch with an accelerator may refuse autograd or the device in a forked process: not a fault of the objective.
    return f"{UNAVAILABLE}: {reason}" if "fork" in reason else reason
