"""Disk (or a generator) -> Batch: everything left of the models."""

from tercet.data.batches import paired_batches
from tercet.data.features import FeatureSet
from tercet.data.scenes import scenes

__all__ = ["FeatureSet", "paired_batches", "scenes"]
