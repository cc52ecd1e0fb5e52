"""Monitoring of a run: warnings about its health, throughput, peak memory, triplets of a batch."""

import time
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from tercet.data.dataset import PairedData
from tercet.interfaces import TorchModule
from tercet.objectives.base import MONITOR_MARGIN
from tercet.objectives.inputs import as_rows, hardest_negative
from tercet.types import Batch, PairMask, Similarity

EQUAL_SPREAD = 1e-4  # standard deviation of similarities below which all of a batch count as equal
PATIENCE = 5  # consecutive checks before a warning: a single unusual batch is not reported
CHANCE = 0.9  # fraction of the mean rank of random guessing above which a model has learned nothing
MIN_IMAGES = 20  # validation images below which the mean rank is too noisy to judge
SMOOTHING = 0.95  # weight of the past in moving averages of throughput
MAX_TRIPLETS, DIGITS = 128, 4  # logged per batch, and their decimals
ADVICE = {  # for `tercet train`
    "collapse": "Try all negatives first (--warmup-objective triplet), a lower --learning-rate, a longer "
    "--warmup-epochs or, for a backbone, --unfreeze-epoch 1 --ramp-epoch 1",
    "silent": "Try a larger margin, a larger --batch-size, or harder negatives",
}
_STATUS, _CLEAR_REFS = Path("/proc/self/status"), Path("/proc/self/clear_refs")


class NotFiniteError(ValueError):
    """NaN or infinity: the run cannot continue."""


class HealthMonitor:
    """Checks the data, logged steps and validation; logs each warning once, with advice."""

    def __init__(self, log: Callable[[str], None], advice: Mapping[str, str] = ADVICE) -> None:
        self._log, self._logged, self._advice = log, set[str](), advice
        self._consecutive: Counter[str] = Counter()

    def check_data(self, data: PairedData) -> None:
        shared, sides = _captions_with_shared_text(data), data.sides
        if shared:
            self._once(
                "equal text",
                f"{shared} {sides.captions} have the same text as a {sides.caption} of another {sides.image} and count "
                f"as negatives of that {sides.image}: --ignore-equal-text ignores such pairs",
            )

    def check_step(
        self, similarity: Tensor, monitor: float, queries: int, reduction: str, counts: Mapping[str, Any]
    ) -> None:
        """Check a step whose contributing samples were counted."""
        at_margin = MONITOR_MARGIN * (queries if reduction == "sum" else 1)
        collapsed = similarity.std().item() < EQUAL_SPREAD or abs(monitor - at_margin) < 1e-4 * at_margin
        silent = all(
            counts[direction]["silent"] == size
            for direction, size in zip(("i2t", "t2i"), similarity.shape, strict=True)
        )
        self._if_lasting(
            "collapse",
            collapsed,
            f"collapse: all similarities are equal and the monitor is {at_margin:g}, the margin of every query. "
            f"{self._advice['collapse']}",
        )
        self._if_lasting(
            "silent",
            silent,
            f"no sample contributes to the gradient: it is exactly 0. {self._advice['silent']}",
        )

    def check_validation(self, metrics: Mapping[str, float], images: int, epoch: int) -> None:
        guessing = (images + 1) / 2
        if epoch >= 1 and images >= MIN_IMAGES and metrics["t2i_meanr"] > CHANCE * guessing:
            self._once(
                "chance",
                f"after {epoch + 1} epochs the mean rank of the positive image is {metrics['t2i_meanr']:.0f} of "
                f"{images}, and random guessing gives {guessing:.0f}: check that images and captions are in the same "
                "order (tercet data inspect), or try another --learning-rate",
            )

    def _if_lasting(self, name: str, present: bool, message: str) -> None:
        self._consecutive[name] = self._consecutive[name] + 1 if present else 0
        if self._consecutive[name] == PATIENCE:
            self._once(name, message)

    def _once(self, name: str, message: str) -> None:
        if name not in self._logged:
            self._logged.add(name)
            self._log(message)


def not_finite_error(batch: Batch, images: Tensor, captions: Tensor, model: TorchModule) -> NotFiniteError:
    """The error of a step with NaN or infinity, which names the first such tensor."""
    return NotFiniteError(
        f"NaN or infinity in {_first_not_finite(batch, images, captions, model)}. Training stops; the last checkpoint "
        "and the best weights so far are kept. Try a lower --learning-rate, a smaller --grad-clip, or "
        "--precision float32; an objective of your own is tested by tercet.check_objective"
    )


def _first_not_finite(batch: Batch, images: Tensor, captions: Tensor, model: TorchModule) -> str:
    """The cause of NaN or infinity: the first such tensor among inputs, embeddings, weights and gradients."""
    tensors = {
        "the images of the batch": batch.images,
        "the captions of the batch": batch.captions,  # token ids are finite
        "the image embeddings": images,
        "the caption embeddings": captions,
    }
    for name, tensor in tensors.items():
        if not tensor.isfinite().all():
            return name
    for name, parameter in model.named_parameters():
        if not parameter.isfinite().all():
            return f"the weights {name}"
    for name, parameter in model.named_parameters():
        if parameter.grad is not None and not parameter.grad.isfinite().all():
            return f"the gradient of {name}"
    return "the objective"


def _captions_with_shared_text(data: PairedData) -> int:
    return sum(text in data.shared_texts for text in data.texts)


class Throughput:
    """Pairs per second, and the fraction of time spent waiting for data, as moving averages."""

    def __init__(self) -> None:
        self._since = time.perf_counter()
        self._waited = self._worked = 0.0
        self._pairs = 0.0

    def start_waiting(self) -> None:
        self._since = time.perf_counter()

    def step_done(self, began: float, pairs: int) -> None:
        """A step is done that began at this time of `perf_counter`, after its data had been waited for."""
        self._waited = SMOOTHING * self._waited + began - self._since
        self._worked = SMOOTHING * self._worked + time.perf_counter() - began
        self._pairs = SMOOTHING * self._pairs + pairs

    def status(self) -> dict[str, str]:
        total = self._waited + self._worked
        return {"pairs/s": f"{self._pairs / total:.0f}", "data wait": f"{100 * self._waited / total:.0f} %"}


class PeakMemory:
    """Peak memory since construction: of the CUDA device, or of the process above what it held before.

    Runs that share the process have equal shares.
    """

    def __init__(self, device: torch.device, runs: int = 1) -> None:
        self._device, self._runs = device, runs
        if device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(device)
        self._before = _memory_mb("VmRSS") if _reset_peak() else None

    def peak_mb(self) -> float | None:
        """Return the peak in MB; None if the operating system does not report it."""
        if self._device.type == "cuda":
            return round(torch.cuda.max_memory_allocated(self._device) / 2**20 / self._runs, 1)
        if self._before is None:
            return None
        return round(max(0.0, _memory_mb("VmHWM") - self._before) / self._runs, 1)


def _reset_peak() -> bool:
    """Reset the peak of this process; possible on Linux only."""
    try:
        _CLEAR_REFS.write_text("5")
    except OSError:
        return False
    return True


def _memory_mb(field: str) -> float:
    line = next(line for line in _STATUS.read_text().splitlines() if line.startswith(field))
    return int(line.split()[1]) / 1024


@torch.no_grad()
def batch_triplets(
    similarity: Similarity, positives: PairMask, ignored: PairMask | None = None
) -> dict[str, list[float | None]]:
    """The triplets of a batch's first positive pairs, rounded, for JSON.

    `s_p` is the similarity of the pair, `i2t` and `t2i` that of the hardest negative of the image and of the caption,
    or None if there is no negative.
    """
    rows = as_rows(similarity, positives, ignored)
    image, caption = (index[:MAX_TRIPLETS] for index in rows.positives.nonzero(as_tuple=True))
    triplets: dict[str, list[float | None]] = {"s_p": _rounded(rows.similarity[image, caption])}
    for direction, anchored, anchor in (("i2t", rows, image), ("t2i", rows.transposed(), caption)):
        hardest = hardest_negative(anchored)
        exists = hardest.exists[anchor].tolist()
        s_n = _rounded(hardest.similarity[anchor])
        triplets[direction] = [s if has_one else None for s, has_one in zip(s_n, exists, strict=True)]
    return triplets


def _rounded(similarity: Float[Tensor, " triplet"]) -> list[float | None]:
    return [round(s, DIGITS) for s in similarity.double().tolist()]
