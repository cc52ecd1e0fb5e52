"""Disk (or a generator) -> Batch: everything left of the models."""

from tercet.data.batches import Batches, paired_batches
from tercet.data.dataset import DataSet, Split
from tercet.data.formats import open_data
from tercet.data.paired import PairedData, paired

__all__ = ["Batches", "DataSet", "PairedData", "Split", "open_data", "paired", "paired_batches"]
