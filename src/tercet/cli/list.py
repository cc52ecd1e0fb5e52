"""`tercet list`: the names that can be given to commands, with those of installed packages."""

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import import_module
from typing import Literal

import tyro
from rich.console import Console
from rich.table import Table

What = Literal["objectives", "models", "recipes", "formats", "metrics", "encoders", "protocols", "executors", "stores"]


MINED = ("off-tri", "off-quin", "aoq")


@dataclass(frozen=True)
class ListSettings:
    """Print what there is of one kind: names that commands take, with those of installed packages."""

    what: tyro.conf.Positional[What]
    """Kind of names to print."""


def print_list(settings: ListSettings, console: Console) -> None:
    table = Table(box=None, padding=(0, 2, 0, 0), show_header=False)
    for name, description in LISTS[settings.what]().items():
        table.add_row(name, description)
    console.print(table, markup=False)


def _objectives() -> dict[str, str]:
    """Settings with their defaults; those of GOAL's cells are equal and printed once."""
    from tercet.objectives.registry import OBJECTIVES, objective, objective_names

    def describe(name: str) -> str:
        if name not in OBJECTIVES:
            return "needs mined negatives" if name in MINED else "from an installed package"
        return ", ".join(f"{key}={value}" for key, value in objective(name).settings.items())

    listed: dict[str, str] = {}
    first_with: dict[str, str] = {}
    for name in objective_names():
        settings = describe(name)
        first = first_with.setdefault(settings, name)
        listed[name] = f"the settings of {first}" if "/" in name and name != first else settings
    return listed


def _models() -> dict[str, str]:
    from tercet.models.registry import ENTRY_POINTS, SYSTEMS, system_of
    from tercet.plugins import installed

    classes = {name: system_of(name) for name in [*SYSTEMS, *installed(ENTRY_POINTS)]}
    return {name: _first_line(import_module(system.__module__)) for name, system in classes.items()}


def _first_line(documented: object) -> str:
    return (inspect.getdoc(documented) or "").partition("\n")[0]


def _recipes() -> dict[str, str]:
    from tercet.recipes import RECIPES

    return {name: f"{system}; {_values(recipe.training)}" for name, (system, recipe) in RECIPES.items()}


def _values(training: dict[str, object]) -> str:
    shown = ("epochs", "batch_size", "learning_rate", "objective")
    return ", ".join(f"{name} {training[name]}" for name in shown if name in training)


def _formats() -> dict[str, str]:
    from tercet.data.formats import all_formats

    return {name: known.description for name, known in all_formats().items()}


def _metrics() -> dict[str, str]:
    from tercet.evaluation.metrics import all_metrics

    directions = "i2t_ and t2i_: "
    own = {name: directions + metric.description for name, metric in all_metrics().items()}
    return own | {
        "ar": directions + "mean of R@1, R@5 and R@10",
        "medr": directions + "floor of the median best rank; smaller is better",
        "meanr": directions + "mean best rank; smaller is better",
        "rsum": "sum of the six recalls",
    }


def _encoders() -> dict[str, str]:
    from tercet.data.encoders.registry import all_encoders

    listed = {}
    for name, encoder in all_encoders().items():
        kinds = [kind for kind, build in (("images", encoder.image), ("texts", encoder.text)) if build is not None]
        listed[name] = f"{' and '.join(kinds)}; {encoder.description}"
    return listed | {"NAME or path": "images or texts; any Hugging Face model"}


def _protocols() -> dict[str, str]:
    from tercet.evaluation import PROTOCOLS

    return {name: PROTOCOL_DESCRIPTIONS[name] for name in PROTOCOLS}


PROTOCOL_DESCRIPTIONS = {
    "custom": "any split, as it is",
    "flickr-1k": "1,000 images with five captions each",
    "coco-5k": "the 5,000 test images of COCO at once",
    "coco-1k": "mean of five folds of 1,000 of them",
    "eccv-caption": "coco-5k, and the additional positives of ECCV Caption (Chun et al., 2022)",
    "cxc": "coco-5k, and the additional positives of Crisscrossed Captions (Parekh et al., 2021)",
}


def _executors() -> dict[str, str]:
    from tercet.comparison.executors import ENTRY_POINTS, EXECUTORS

    return _documented("executor", EXECUTORS, ENTRY_POINTS)


def _stores() -> dict[str, str]:
    from tercet.search.vector_store import ENTRY_POINTS, STORES

    return _documented("vector store", STORES, ENTRY_POINTS)


def _documented(what: str, builtin: Mapping[str, object], group: str) -> dict[str, str]:
    from tercet.plugins import find, installed

    return {name: _first_line(find(what, name, builtin, group)) for name in [*builtin, *installed(group)]}


LISTS: dict[What, Callable[[], dict[str, str]]] = {
    "objectives": _objectives,
    "models": _models,
    "recipes": _recipes,
    "formats": _formats,
    "metrics": _metrics,
    "encoders": _encoders,
    "protocols": _protocols,
    "executors": _executors,
    "stores": _stores,
}
