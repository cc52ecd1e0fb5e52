"""Any objective of the catalogue with any settings: its diagram, and its gradient on one batch of real pictures."""

from collections.abc import Mapping
from dataclasses import MISSING, dataclass, fields
from functools import partial
from typing import Any

import numpy as np
import torch

from tercet.analysis.diagram import MINED, RELATIVE, plane
from tercet.objectives import RowObjective, objective
from tercet.objectives.catalogue import CATALOGUE, WITH_MINED, nearest
from tercet.objectives.goal import PAIR_WEIGHTS, TRIPLET_WEIGHTS
from tercet.search.looks import asked_of
from tercet.search.query import Searcher

POINTS = 56  # of an axis: enough for lines that look smooth, few enough to be sent while one drags
PAIRS = 8  # of the batch
DIGITS = 4
LONGEST_VALUE = 40  # signs of a setting in a link

# Where a slider begins and ends, and its step. What has no row here is a choice or a switch.
SLIDERS: dict[str, tuple[float, float, float]] = {
    "margin": (0.0, 1.0, 0.01),
    "tau": (1.0, 64.0, 0.5),
    "offset": (-1.0, 1.0, 0.01),
    "alpha": (0.1, 20.0, 0.1),
    "beta": (0.1, 64.0, 0.1),
    "lam": (0.0, 1.0, 0.01),
    "slack": (0.0, 0.5, 0.01),
    "temperature": (0.005, 1.0, 0.005),
    "bias": (-20.0, 10.0, 0.1),
    "mined_margin": (0.0, 1.0, 0.01),
    "adapt_alpha": (0.0, 2.0, 0.05),
    "adapt_beta": (0.0, 4.0, 0.05),
}
CHOICES = {"empty": ["plain", "zero"], "reading": ["paper", "code"], "reduction": ["sum", "mean"]}
OF_THE_DIAGRAM = {"relative": RELATIVE, "mined": MINED}  # of the plane, not of the objective


@dataclass(frozen=True)
class Control:
    """Of one setting: a slider, a choice or a switch."""

    name: str
    default: float | str | bool | None
    low: float | None = None
    high: float | None = None
    step: float | None = None
    choices: list[str] | None = None


@dataclass(frozen=True)
class Listed:
    name: str
    controls: list[Control]


@dataclass(frozen=True)
class Catalogue:
    objectives: list[Listed]
    triplet_weights: list[str]
    pair_weights: list[str]


@dataclass(frozen=True)
class Diagram:
    objective: str
    settings: dict[str, Any]
    """All of them, as the objective took them."""
    python: str
    has_value: bool
    axis: list[float]
    pull: list[list[float]]
    """Rows are negative similarities, columns positive ones."""
    push: list[list[float]]
    triplet_weight: list[list[float]] | None
    positive_weight: list[float] | None
    negative_weight: list[float] | None


@dataclass(frozen=True)
class Member:
    number: int
    checksum: str
    caption: str


@dataclass(frozen=True)
class BatchGradient:
    index: str
    members: list[Member]
    """Row k is the picture of member k, column k its caption."""
    similarity: list[list[float]]
    gradient: list[list[float]]
    """Of both directions: below 0 pulls together, above 0 pushes apart."""


class Batch:
    """Pictures of an index with a caption each: some spread over it, and the nearest neighbour of each."""

    def __init__(self, name: str, searcher: Searcher) -> None:
        items = searcher.index.items
        captioned = [number for number, item in enumerate(items) if item.captions]
        spread = captioned[:: max(1, len(captioned) // (PAIRS // 2))][: PAIRS // 2]
        chosen: list[int] = []
        for number in spread:
            near = (hit.number for hit in searcher.neighbours(number, 50) if hit.item.captions)
            chosen += [each for each in (number, next(near, number)) if each not in chosen]
        if len(chosen) < 2:
            raise ValueError(f"{name} has no two pictures with captions, of which a batch could be made")
        self.index = name
        self.members = [Member(n, items[n].checksum, items[n].captions[0]) for n in chosen]
        captions = torch.stack([each.vector for each in asked_of(searcher.retriever, self._captions())]).float().cpu()
        images = torch.from_numpy(np.asarray(searcher.index.vectors[chosen], dtype=np.float32))
        self.similarity = (images @ captions.T).double()
        checksums = [items[number].checksum for number in chosen]
        self.positives = torch.tensor([[a == b for b in checksums] for a in checksums])

    def _captions(self) -> list[str]:
        return [member.caption for member in self.members]

    def gradient(self, made: RowObjective, mined: float) -> BatchGradient:
        members = {"mined": torch.full((int(self.positives.sum()), 4), mined).double()} if made.takes_mined else {}
        gradient = made.pair_gradient(self.similarity, self.positives, **members)
        return BatchGradient(self.index, self.members, _rows(self.similarity), _rows(gradient))


def catalogue() -> Catalogue:
    known = [Listed(name, _controls(name)) for name in CATALOGUE | WITH_MINED]
    return Catalogue(known, list(TRIPLET_WEIGHTS), list(PAIR_WEIGHTS))


def made_of(name: str, named: Mapping[str, str]) -> RowObjective:
    """By name and settings as a link has them. Only of the catalogue: a file of one's own would be run."""
    known = CATALOGUE | WITH_MINED
    name = name.replace("+", "/").replace(" ", "/")  # a plus in a link is a space
    if name not in known:
        raise ValueError(f"unknown objective {name[:80]!r}{nearest(name[:80], known)}; known: {', '.join(known)}")
    return objective(name, **{setting: _value(text) for setting, text in named.items()})


def diagram(made: RowObjective, relative: float, mined: float) -> Diagram:
    found = plane(made, points=POINTS, relative=relative, mined=mined)
    weights = [None if each is None else _rounded(each) for each in (found.positive_weight, found.negative_weight)]
    return Diagram(
        made.name,
        {name: value for name, value in made.settings.items() if isinstance(value, int | float | str | bool | None)},
        repr(made),
        made.has_value,
        _rounded(found.s_p),
        _rows(found.pull),
        _rows(found.push),
        None if found.triplet_weight is None else _rows(found.triplet_weight),
        *weights,
    )


def _controls(name: str) -> list[Control]:
    made = objective(name)
    build: Any = (CATALOGUE | WITH_MINED)[name]
    known = fields(build.func if isinstance(build, partial) else build)  # type: ignore[arg-type]
    controls = []
    for each in known:
        if not each.kw_only or each.default is MISSING:
            continue
        default = getattr(made, each.name)
        if each.name in SLIDERS:
            controls.append(Control(each.name, default, *SLIDERS[each.name]))
        elif each.name in CHOICES:
            controls.append(Control(each.name, default, choices=CHOICES[each.name]))
        elif isinstance(default, bool):
            controls.append(Control(each.name, default))
    if getattr(made, "relative", None) is not None:
        controls.append(Control("relative", RELATIVE, 0.0, 1.0, 0.01))
    if made.takes_mined:
        controls.append(Control("mined", MINED, -1.0, 1.0, 0.01))
    return controls


def _value(text: str) -> Any:
    if len(text) > LONGEST_VALUE:
        raise ValueError(f"a setting of {len(text):,} signs: at most {LONGEST_VALUE} are read")
    known = {"true": True, "false": False, "null": None}
    if text in known:
        return known[text]
    try:
        return float(text)
    except ValueError:
        return text


def _rows(matrix: torch.Tensor) -> list[list[float]]:
    return [_rounded(row) for row in matrix]


def _rounded(numbers: torch.Tensor) -> list[float]:
    return [round(number, DIGITS) for number in numbers.tolist()]
