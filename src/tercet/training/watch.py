"""A watchful eye on a run: it says what goes wrong while it goes wrong, and what to try."""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from torch import Tensor, nn

from tercet.data.pairs import PairedData
from tercet.objectives.base import MONITOR_MARGIN

ALL_EQUAL = 1e-4  # spread of similarities below which a batch cannot be told apart
PATIENCE = 5  # looks in a row before a word: a single odd batch is no news
CHANCE = 0.9  # of the mean rank of guessing: above, a model has learnt nothing
FEW = 20  # images of a validation set on which luck decides


class NotFiniteError(ValueError):
    """NaN or infinity: the run cannot go on."""


class Watch:
    """Looks at every counted step and every validation; each warning is given once."""

    def __init__(self, say: Callable[[str], None]) -> None:
        self._say, self._said = say, set[str]()
        self._seen: Counter[str] = Counter()

    def data(self, data: PairedData) -> None:
        shared = _captions_with_shared_text(data)
        if shared:
            self._once(
                "equal text",
                f"{shared} captions stand word for word under more than one image, and each is taken for a negative of "
                "the others' images: --ignore-equal-text leaves such pairs out",
            )

    def step(self, similarity: Tensor, monitor: float, queries: int, reduction: str, counts: Mapping[str, Any]) -> None:
        """At a step at which samples are counted."""
        at_margin = MONITOR_MARGIN * (queries if reduction == "sum" else 1)
        collapsed = similarity.std().item() < ALL_EQUAL or abs(monitor - at_margin) < 1e-4 * at_margin
        silent = all(
            counts[side]["silent"] == size for side, size in zip(("i2t", "t2i"), similarity.shape, strict=True)
        )
        self._lasting(
            "collapse",
            collapsed,
            f"collapse: all similarities are equal and the monitor stands at {at_margin:g}, the margin of every query. "
            "Try all negatives first (--first-objective triplet), a lower --learning-rate, a longer --warm-up-epochs "
            "or, for a backbone, --thaw-epoch 1 --ramp-epoch 1",
        )
        self._lasting(
            "silent",
            silent,
            "no sample contributes to the gradient: the objective has nothing left to teach. Try a larger margin, a "
            "larger --batch-size, or harder negatives",
        )

    def validation(self, metrics: Mapping[str, float], images: int, epoch: int) -> None:
        guessed = (images + 1) / 2
        if epoch >= 1 and images >= FEW and metrics["t2i_meanr"] > CHANCE * guessed:
            self._once(
                "chance",
                f"after {epoch + 1} epochs the mean rank of the right image is {metrics['t2i_meanr']:.0f} of {images}, "
                f"and guessing gives {guessed:.0f}: do images and captions stand in the same order (tercet data "
                "inspect)? Else try another --learning-rate",
            )

    def finite(self, scalar: float, norm: float, where: Callable[[], str]) -> None:
        """`where` finds the first tensor that is not, which takes time."""
        if not (abs(scalar) < float("inf") and abs(norm) < float("inf")):
            raise NotFiniteError(
                f"NaN or infinity in {where()}. Training stops; the last checkpoint and the best weights so far are "
                "kept. Try a lower --learning-rate, a smaller --clip, or --precision float32"
            )

    def _lasting(self, name: str, present: bool, message: str) -> None:
        self._seen[name] = self._seen[name] + 1 if present else 0
        if self._seen[name] == PATIENCE:
            self._once(name, message)

    def _once(self, name: str, message: str) -> None:
        if name not in self._said:
            self._said.add(name)
            self._say(message)


def first_not_finite(named: Iterable[tuple[str, Tensor | None]], model: nn.Module) -> str:
    """Inputs first, then embeddings, then gradients and weights: the first is the cause."""
    for name, tensor in named:
        if tensor is not None and not tensor.isfinite().all():
            return name
    for name, parameter in model.named_parameters():
        if not parameter.isfinite().all():
            return f"the weights {name}"
    for name, parameter in model.named_parameters():
        if parameter.grad is not None and not parameter.grad.isfinite().all():
            return f"the gradient of {name}"
    return "the objective"


def _captions_with_shared_text(data: PairedData) -> int:
    owners: dict[str, set[int]] = {}
    for text, owner in zip(data.texts, data.owners.tolist(), strict=True):
        owners.setdefault(text, set()).add(owner)
    return sum(len(owners[text]) > 1 for text in data.texts)
