"""Datasets on disk or generated -> `Batch`. Public names are imported lazily."""

from typing import TYPE_CHECKING

from tercet.names import lazy_exports

if TYPE_CHECKING:
    from tercet.data.collate import Collator
    from tercet.data.dataset import DataSet, PairedData, Split, paired
    from tercet.data.formats import open_data

__all__ = ["Collator", "DataSet", "PairedData", "Split", "open_data", "paired"]

__getattr__ = lazy_exports(
    "tercet.data",
    {
        "Collator": "tercet.data.collate",
        "DataSet": "tercet.data.dataset",
        "Split": "tercet.data.dataset",
        "open_data": "tercet.data.formats",
        "PairedData": "tercet.data.dataset",
        "paired": "tercet.data.dataset",
    },
)
