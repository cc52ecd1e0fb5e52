"""Disk (or a generator) -> Batch: everything left of the models. Parts are imported when they are first asked for."""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tercet.data.batches import Batches
    from tercet.data.dataset import DataSet, Split
    from tercet.data.formats import open_data
    from tercet.data.pairs import PairedData, paired

__all__ = ["Batches", "DataSet", "PairedData", "Split", "open_data", "paired"]

_PARTS = {
    "Batches": "batches",
    "DataSet": "dataset",
    "Split": "dataset",
    "open_data": "formats",
    "PairedData": "pairs",
    "paired": "pairs",
}


def __getattr__(name: str) -> Any:
    if name not in _PARTS:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"tercet.data.{_PARTS[name]}"), name)
