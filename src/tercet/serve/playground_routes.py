"""Routes of the playground tab: any built-in objective with any settings, its triplet diagram, and its gradient on one
batch of indexed images.
"""

from collections.abc import Mapping
from dataclasses import MISSING, dataclass, fields
from functools import partial
from typing import Any

import numpy as np
import torch
from fastapi import APIRouter, HTTPException, Request

from tercet.analysis.triplet_diagram import MINED_SIMILARITY, RELATIVE_TERM, plane
from tercet.interfaces import Objective
from tercet.names import suggest
from tercet.objectives import RowObjective, objective
from tercet.objectives.aoq import AOQ
from tercet.objectives.goal.cells import PAIR_WEIGHTS, TRIPLET_WEIGHTS
from tercet.objectives.registry import AOQ_OBJECTIVES, OBJECTIVES
from tercet.search.searcher import Searcher
from tercet.search.two_stage import encode_queries
from tercet.serve.limits import MAX_SETTING_CHARS
from tercet.serve.params import IndexName
from tercet.serve.state import AppState

DIAGRAM_POINTS = 56  # per axis: smooth contour lines, and small enough to send while a slider is dragged
BATCH_PAIRS = 8
MAX_NEIGHBOURS = 50  # searched for one with a caption
DECIMALS = 4

# Setting -> slider (low, high, step). Settings without an entry are a choice or a switch.
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
DIAGRAM_SETTINGS = {"relative": RELATIVE_TERM, "mined": MINED_SIMILARITY}  # of the diagram, not of the objective


@dataclass(frozen=True)
class Control:
    """Control of one setting: a slider, a choice or a switch."""

    name: str
    default: float | str | bool | None
    low: float | None = None
    high: float | None = None
    step: float | None = None
    choices: list[str] | None = None


@dataclass(frozen=True)
class ObjectiveInfo:
    name: str
    controls: list[Control]


@dataclass(frozen=True)
class ObjectiveList:
    objectives: list[ObjectiveInfo]
    triplet_weights: list[str]
    pair_weights: list[str]


@dataclass(frozen=True)
class Diagram:
    objective: str
    settings: dict[str, Any]
    """All settings of the objective, with defaults filled in."""
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
    text: str | None
    """Of a passage, which has no image."""


@dataclass(frozen=True)
class BatchGradient:
    index: str
    members: list[Member]
    """Row i is the image of member i, column i its caption."""
    similarity: list[list[float]]
    gradient: list[list[float]]
    """Pair gradient of both directions: negative pulls together, positive pushes apart."""


def playground_routes(state: AppState) -> APIRouter:
    routes = APIRouter()
    batches: dict[str, PlaygroundBatch] = {}

    @routes.get("/api/objectives")
    async def objectives() -> ObjectiveList:
        """Built-in objectives and their settings."""
        return list_objectives()

    @routes.get("/api/diagram")
    async def diagram(request: Request, objective: str) -> Diagram:
        """Triplet diagram of an objective; its settings are further query parameters, by name."""
        settings, diagram_settings = _parse_settings(request)
        return await state.workers.run(
            lambda: objective_diagram(parse_objective(objective, settings), **diagram_settings)
        )

    @routes.get("/api/gradient")
    async def gradient(request: Request, objective: str, index: IndexName = None) -> BatchGradient:
        """Pair gradient of an objective on one fixed batch of the index's images and captions."""
        settings, diagram_settings = _parse_settings(request)
        loaded_index = state.indexes.get(index)
        name, searcher = loaded_index.name, loaded_index.searcher

        def compute() -> BatchGradient:
            parsed = parse_objective(objective, settings)
            if name not in batches:
                batches[name] = PlaygroundBatch(name, searcher)
            return batches[name].gradient(parsed, diagram_settings["mined"])

        return await state.workers.run(compute)

    return routes


def list_objectives() -> ObjectiveList:
    infos = [ObjectiveInfo(name, _controls(name)) for name in OBJECTIVES | AOQ_OBJECTIVES]
    return ObjectiveList(infos, list(TRIPLET_WEIGHTS), list(PAIR_WEIGHTS))


def parse_objective(name: str, settings: Mapping[str, str]) -> RowObjective:
    """Build an objective from URL parameters. Built-in ones only: `file.py:function` would execute a file."""
    known = OBJECTIVES | AOQ_OBJECTIVES
    name = name.replace("+", "/").replace(" ", "/")  # a plus in a URL is a space
    if name not in known:
        raise ValueError(
            f"unknown objective {name[:80]!r}{suggest(name[:80], known, cutoff=0.5)}; known: {', '.join(known)}"
        )
    return objective(name, **{setting: _parse_value(text) for setting, text in settings.items()})


def objective_diagram(row_objective: RowObjective, relative: float, mined: float) -> Diagram:
    grid = plane(row_objective, points=DIAGRAM_POINTS, relative=relative, mined=mined)
    pair_weights = [
        None if weights is None else _rounded(weights) for weights in (grid.positive_weight, grid.negative_weight)
    ]
    settings = row_objective.settings.items()
    return Diagram(
        row_objective.name,
        {name: value for name, value in settings if isinstance(value, int | float | str | bool | None)},
        repr(row_objective),
        row_objective.has_value,
        _rounded(grid.s_p),
        _rows(grid.pull),
        _rows(grid.push),
        None if grid.triplet_weight is None else _rows(grid.triplet_weight),
        *pair_weights,
    )


class PlaygroundBatch:
    """Images of an index, spread over it, each followed by its nearest neighbour; one caption per image."""

    def __init__(self, index_name: str, searcher: Searcher) -> None:
        items = searcher.index.items
        captioned = [number for number, item in enumerate(items) if item.captions]
        spread = captioned[:: max(1, len(captioned) // (BATCH_PAIRS // 2))][: BATCH_PAIRS // 2]
        chosen: list[int] = []
        for number in spread:
            neighbours = (hit.number for hit in searcher.neighbours(number, MAX_NEIGHBOURS) if hit.item.captions)
            chosen += [candidate for candidate in (number, next(neighbours, number)) if candidate not in chosen]
        if len(chosen) < 2:
            raise ValueError(f"{index_name}: a batch needs at least 2 images with captions, got {len(chosen)}")
        self.index_name = index_name
        self.members = [
            Member(number, items[number].checksum, items[number].captions[0], items[number].text) for number in chosen
        ]
        queries = encode_queries(searcher.retriever, [member.caption for member in self.members])
        captions = torch.stack([query.vector for query in queries]).float().cpu()
        images = torch.from_numpy(np.asarray(searcher.index.vectors[chosen], dtype=np.float32))
        self.similarity = (images @ captions.T).double()
        checksums = [member.checksum for member in self.members]
        self.positives = torch.tensor([[a == b for b in checksums] for a in checksums])

    def gradient(self, row_objective: RowObjective, mined: float) -> BatchGradient:
        """Return the pair gradient. `mined` is the similarity of all mined members, for objectives that take them."""
        bound: Objective = row_objective
        if isinstance(row_objective, AOQ):
            bound = row_objective.bind(torch.full((int(self.positives.sum()), 4), mined).double())
        gradient = bound.pair_gradient(self.similarity, self.positives)
        return BatchGradient(self.index_name, self.members, _rows(self.similarity), _rows(gradient))


def _controls(name: str) -> list[Control]:
    default_objective = objective(name)
    build: Any = (OBJECTIVES | AOQ_OBJECTIVES)[name]
    settings = fields(build.func if isinstance(build, partial) else build)  # type: ignore[arg-type]
    controls = []
    for setting in settings:
        if not setting.kw_only or setting.default is MISSING:
            continue
        default = getattr(default_objective, setting.name)
        if setting.name in SLIDERS:
            controls.append(Control(setting.name, float(default), *SLIDERS[setting.name]))
        elif setting.name in CHOICES:
            controls.append(Control(setting.name, default, choices=CHOICES[setting.name]))
        elif isinstance(default, bool):
            controls.append(Control(setting.name, default))
    if getattr(default_objective, "relative", None) is not None:
        controls.append(Control("relative", RELATIVE_TERM, 0.0, 1.0, 0.01))
    if isinstance(default_objective, AOQ):
        controls.append(Control("mined", MINED_SIMILARITY, -1.0, 1.0, 0.01))
    return controls


def _parse_settings(request: Request) -> tuple[dict[str, str], dict[str, float]]:
    """Return the settings of the objective and those of the diagram."""
    settings = {
        name: value for name, value in request.query_params.items() if name not in ("objective", "index", "token")
    }
    diagram_settings = {}
    for name, default in DIAGRAM_SETTINGS.items():
        try:
            diagram_settings[name] = float(settings.pop(name, default))
        except ValueError as error:
            raise HTTPException(422, f"{name} must be a number") from error
        if not -10 <= diagram_settings[name] <= 10:
            raise HTTPException(422, f"{name} must be from -10 to 10")
    return settings, diagram_settings


def _parse_value(text: str) -> Any:
    if len(text) > MAX_SETTING_CHARS:
        raise ValueError(f"setting too long: {len(text):,} characters, at most {MAX_SETTING_CHARS}")
    constants = {"true": True, "false": False, "null": None}
    if text in constants:
        return constants[text]
    try:
        return float(text)
    except ValueError:
        return text


def _rows(matrix: torch.Tensor) -> list[list[float]]:
    return [_rounded(row) for row in matrix]


def _rounded(values: torch.Tensor) -> list[float]:
    return [round(value, DECIMALS) for value in values.tolist()]
