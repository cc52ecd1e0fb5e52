"""What training has to beat: rows of a comparison that no objective trained.

`untrained` is a pretrained dual encoder as it is (zero-shot), also as features of which heads are trained. `cca` is the
linear projection of frozen features that correlates most, in closed form. Each is a model like any other: it is saved
beside the runs, and can be evaluated, indexed and loaded. They are not part of the family of tests between the
objectives.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from tercet import runs
from tercet.comparison.cca import DEFAULT_RIDGE, RIDGES, cca_heads, covariances, identity_heads
from tercet.comparison.family import compare_family
from tercet.comparison.plan import PlannedRun, PreparedDatasets
from tercet.comparison.results import COLUMNS, Results
from tercet.data.feature_array import FeatureArray
from tercet.evaluation import RankTable
from tercet.evaluation.metrics import contributions, largest_value
from tercet.hub import is_pretrained
from tercet.inference import WEIGHTS, Retriever
from tercet.models import preset, system_of
from tercet.models.heads import HeadsSettings
from tercet.reporting.output_formats import Cell, Table
from tercet.training.eval_loop import evaluate_split, selection_value
from tercet.training.prepare import PreparedData, resolve
from tercet.training.settings import TrainSettings

UNTRAINED, CCA = "untrained", "cca"
FOLDER = "baselines"
MEANING = {UNTRAINED: "zero-shot, as the pretrained model is", CCA: "regularised CCA, linear, in closed form"}


@dataclass(frozen=True)
class Baseline:
    name: str
    """As shown in the table."""
    kind: str
    model: Path
    """What `tercet.load` takes: a folder beside the runs, or the pretrained model."""
    metrics: dict[str, float]
    ranks: RankTable
    selected: float | None
    """The metric that selects checkpoints, on validation; None without validation."""

    def cells(self) -> list[Cell]:
        """Of the table of recalls."""
        return [Cell(f"{self.metrics[column]:.1f}") for column in COLUMNS]

    def document(self) -> dict[str, Any]:
        """For JSON."""
        return {"name": self.name, "what": MEANING[self.kind], "model": str(self.model), "metrics": self.metrics}


def find_baselines(plans: Mapping[str, PlannedRun], prepared_datasets: PreparedDatasets) -> list[Baseline]:
    """The baselines of every model, each computed once: results are kept beside the runs."""
    first = {plan.variant.model: plan.settings for plan in reversed(list(plans.values()))}
    found = []
    for model, prepared in prepared_datasets.items():
        for kind in _kinds(model, prepared):
            name = kind if len(prepared_datasets) == 1 else f"{model} {kind}"
            found.append(_baseline(name, kind, prepared, first[model]))
    return found


def _kinds(model: str, prepared: PreparedData) -> list[str]:
    spec = system_of(preset(model)[0]).spec
    if spec.vision is not None and spec.vision == spec.text:  # one pretrained model of both
        return [UNTRAINED]
    if not spec.caption_features or not isinstance(prepared.train.images, FeatureArray):
        return []
    encoders = prepared.preprocessor
    same = encoders.image_encoder is not None and encoders.image_encoder == encoders.text_encoder
    dims = prepared.train.images.shape[-1], prepared.sizes["caption_dim"]
    return [*([UNTRAINED] if same and dims[0] == dims[1] and not encoders.grid else []), CCA]


def _baseline(name: str, kind: str, prepared: PreparedData, settings: TrainSettings) -> Baseline:
    identity = {"kind": kind, "model": Path(settings.model).name, "settings": settings.model_settings}
    identity |= {key: resolve(settings)[2][key] for key in ("pretrained", "init_checksum")}
    folder = settings.runs / FOLDER / f"{prepared.name}_{kind}_{runs.run_hash(identity, prepared.checksum)}"
    stored = runs.read_baseline(folder)
    if stored is None or not _is_model(stored[0]["model"]):
        retriever, path = _model(kind, prepared, settings, folder)
        evaluation = evaluate_split(retriever.model, prepared.held_out)
        selected = _selected(retriever, prepared, settings)
        content: dict[str, Any] = {"model": str(path), "metrics": evaluation.metrics, "selected": selected}
        stored = content, dict(evaluation.ranks.arrays())
        runs.write_baseline(folder, *stored)
    content, arrays = stored
    return Baseline(name, kind, Path(content["model"]), content["metrics"], RankTable(arrays), content["selected"])


def _is_model(path: str) -> bool:
    return (Path(path) / WEIGHTS).is_file() or is_pretrained(path)


def _model(kind: str, prepared: PreparedData, settings: TrainSettings, folder: Path) -> tuple[Retriever, Path]:
    """The model, and the path that `tercet.load` takes."""
    system, preset_settings = preset(settings.model)
    spec = system_of(system).spec
    if spec.vision is not None:
        pretrained = (preset_settings | settings.model_settings).get(spec.vision)
        path = settings.init_from or str(pretrained)
        return prepared.retriever(prepared.model(settings)), Path(path)
    if kind == UNTRAINED:
        retriever = prepared.retriever(identity_heads(prepared.sizes["image_dim"]))
    else:
        retriever = _best_cca(prepared, settings)
    if not (folder / "model" / WEIGHTS).is_file():
        folder.mkdir(parents=True, exist_ok=True)
        retriever.save(folder / "model")
    return retriever, (folder / "model").resolve()


def _best_cca(prepared: PreparedData, settings: TrainSettings) -> Retriever:
    """With the ridge that is best on validation."""
    found = covariances(prepared.train)
    embed_dim = int(settings.model_settings.get("embed_dim", HeadsSettings.embed_dim))
    ridges = RIDGES if prepared.validation is not None else (DEFAULT_RIDGE,)
    models = [prepared.retriever(cca_heads(found, ridge, embed_dim)) for ridge in ridges]
    return max(models, key=lambda retriever: _selected(retriever, prepared, settings) or 0.0)


def _selected(retriever: Retriever, prepared: PreparedData, settings: TrainSettings) -> float | None:
    if prepared.validation is None:
        return None
    return selection_value(evaluate_split(retriever.model, prepared.validation).metrics, settings.select_metric)


def with_baselines(table: Table, baselines: Sequence[Baseline]) -> Table:
    """The table of recalls with a row of each baseline at its end."""
    width = len(table.headings) - 1
    rows = [(each.name, [*each.cells(), *[Cell("")] * (width - len(COLUMNS))]) for each in baselines]
    return replace(table, rows=[*table.rows, *rows])


def baselines_note(results: Results, baselines: Sequence[Baseline], metric: str, leader: str) -> str:
    """How far the leader is above the best baseline, and whether that is sure: a family of tests of its own."""
    if not baselines:
        return ""
    best = max(baselines, key=lambda each: float(contributions(each.ranks, metric).mean()))
    seeds = sorted(results.runs[leader])
    values = {name: results.per_image(name, sorted(results.runs[name]), metric) for name in results.names()}
    values = {name: rows for name, rows in values.items() if len(rows) == len(seeds)}
    values[best.name] = np.repeat(contributions(best.ranks, metric)[None], len(seeds), axis=0)
    tests = compare_family(values, baseline=best.name, largest=largest_value(metric))
    pair = tests.pair(leader, best.name)
    places, means = tests.places, tests.means
    text = f"Without an objective, {best.name} ({MEANING[best.kind]}) has {metric} {means[best.name]:.{places}f}"
    if pair is None:
        return f"{text}."
    ends = sorted((pair.low, pair.high) if pair.first == leader else (-pair.low, -pair.high))
    difference = means[leader] - means[best.name]
    interval = f"95 % interval {ends[0]:+.{places}f} to {ends[1]:+.{places}f}"
    if not pair.differs:
        return f"{text}; whether {leader} differs from it is not decided ({difference:+.{places}f}, {interval})."
    where = "above" if difference > 0 else "below"
    return f"{text}; {leader} is {abs(difference):.{places}f} points {where} it ({interval})."
