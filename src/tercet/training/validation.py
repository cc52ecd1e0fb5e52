"""A model on a split: each item is encoded once, every positive is ranked."""

from collections.abc import Callable, Mapping
from difflib import get_close_matches
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from tercet.data.meetings import by_length
from tercet.data.pairs import PairedData, Source
from tercet.data.pixels import Pixels
from tercet.data.text.tokens import Tokens
from tercet.evaluation import Evaluation, Tiles, evaluate, evaluate_tiles, tiles_of_blocks, tiles_of_embeddings
from tercet.similarity import Ragged

PIXELS_AT_ONCE, AT_ONCE = 64, 512

Encoded = Tensor | Ragged
"""Vectors, or sets of them where regions and words are compared one by one."""


@torch.inference_mode()
def encoded(model: Any, data: PairedData) -> tuple[Encoded, Encoded]:
    """Images and captions, in float32 (or the model's float64), in evaluation mode whatever mode the model is in."""
    mode = model.training
    model.eval()
    try:
        return _side(model, data.images, model.encode_images), _side(model, data.captions, model.encode_captions)
    finally:
        model.train(mode)


def tiles_of(model: Any, images: Encoded, captions: Encoded) -> Tiles:
    """Dot products where they are the model's similarity; else the model compares, block by block."""
    if isinstance(images, Tensor) and isinstance(captions, Tensor) and model.dot_product:
        return tiles_of_embeddings(images, captions)
    device = next(model.parameters()).device
    return tiles_of_blocks(lambda a, b: model.similarity(a.to(device), b.to(device)).cpu(), images, captions)


def evaluated(model: Any, data: PairedData) -> Evaluation:
    """Metrics, and the rank of every positive."""
    return evaluate_tiles(tiles_of(model, *encoded(model, data)), data.owners)


def check_selection(by: str) -> None:
    """Before any training: only what is better when it is larger can choose."""
    pair = torch.eye(2)
    names = [name for name in evaluate(pair, pair.bool()) if name == "rsum" or name.startswith(("i2t_", "t2i_"))]
    known = [name for name in names if not name.endswith(("_medr", "_meanr", "_queries"))]
    for name in by.split("+"):
        if name not in known:
            near = get_close_matches(name, known, n=1)
            hint = f" (did you mean {near[0]}?)" if near else ""
            raise ValueError(f"--select: {name!r} cannot choose weights{hint}; these can: {', '.join(known)}")


def selected(metrics: Mapping[str, float], by: str) -> float:
    """The number that chooses the weights: a metric, or several added."""
    return sum(metrics[name] for name in by.split("+"))


def _side(model: nn.Module, source: Source, encode: Callable[[Tensor, Tensor | None], Tensor]) -> Encoded:
    """Captions of one length together, so that little is padded."""
    weights = next(model.parameters())
    at_once = PIXELS_AT_ONCE if isinstance(source, Pixels) else AT_ONCE
    if isinstance(source, Tokens):
        at_once = getattr(model, "captions_at_once", at_once)
    lengths = source.lengths() if isinstance(source, Tokens) else np.zeros(len(source), dtype=np.int64)
    parts = by_length(lengths, at_once)
    found = []
    for part in parts:
        items, real = source.take(part)
        items = items.to(weights.device, weights.dtype) if items.is_floating_point() else items.to(weights.device)
        found.append(encode(items, None if real is None else real.to(weights.device)).cpu())
    order = torch.cat(parts).argsort()
    return Ragged.of(found)[order] if found[0].ndim == 3 else torch.cat(found)[order]
