"""The same objective inside other trainers: one file per host, which imports the host only when it is used.

docs/integrations.md has a section for each, and what goes wrong in silence without these files.
"""

from collections.abc import Callable
from functools import cache
from importlib import import_module
from typing import Any

from tercet.names import lazy_exports
from tercet.objectives import ObjectiveLike, RowObjective, objective

PACKAGES = {
    "datasets": "datasets",
    "lightning": "lightning",
    "mteb": "mteb",
    "pytorch_metric_learning": "pytorch-metric-learning",
    "sentence_transformers": "sentence-transformers",
    "transformers": "'tercet[hf]'",
}
ADAPTERS = ("hf_trainer", "lightning", "mteb", "open_clip", "pml", "sentence_transformers", "trec")

__getattr__ = lazy_exports("tercet.integrations", dict.fromkeys(ADAPTERS, "tercet.integrations"))


def host(module: str) -> Any:
    """Import a module of a host; `ValueError` that says what to install if its package is missing."""
    package = module.split(".")[0]
    try:
        return import_module(module)
    except ModuleNotFoundError as error:
        if error.name is None or error.name.split(".")[0] != package:
            raise
        raise ValueError(f"{package} is not installed: pip install {PACKAGES[package]}") from None


def without_state(which: ObjectiveLike, **settings: Any) -> RowObjective:
    """The objective; `ValueError` if it has parameters or state, which the host would neither train nor save."""
    built = objective(which, **settings)
    if built.states:
        raise ValueError(f"{built.name} has parameters or state of its own, which this trainer would not train")
    return built


def made_on_first_use(*makers: Callable[[], type]) -> Callable[[str], type]:
    """Return a module's `__getattr__` for classes that inherit from the host's; `_Loss` makes `Loss`."""
    by_name = {maker.__name__.removeprefix("_"): cache(maker) for maker in makers}

    def find(name: str) -> type:
        if name not in by_name:
            raise AttributeError(f"no attribute {name!r}; there is: {', '.join(by_name)}")
        return by_name[name]()

    return find


def __dir__() -> list[str]:
    return [*ADAPTERS]
