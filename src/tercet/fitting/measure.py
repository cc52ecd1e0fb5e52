"""Seconds of one image, one caption and one training step on this machine, for the plan of `tercet fit`."""

import time
from collections.abc import Callable
from typing import NamedTuple

import torch

from tercet.data.dataset import Split
from tercet.data.encoders.registry import ImageEncoder, TextEncoder
from tercet.data.image_io import ImageFiles, open_image
from tercet.fitting.budget import FEATURES, MAX_BATCH, WHOLE, Measured
from tercet.inference import Retriever
from tercet.interfaces import RetrievalModel
from tercet.models import build
from tercet.objectives import objective

IMAGES, CAPTIONS = 8, 64  # encoded together, as in the extraction of features


class Sizes(NamedTuple):
    """Channels of the features."""

    image: int
    caption: int


def measure(
    split: Split, images: ImageEncoder | None, texts: TextEncoder | None, whole: Retriever | None
) -> tuple[Measured, Sizes]:
    """Encode a few items and make one step with each model; also returns the sizes of the features."""
    files = split.images()
    image, image_dim = 0.0, 0 if split.features is None else split.features.shape[-1]
    if images is not None and files is not None:
        image, image_dim = _seconds_per_image(files, images)
    caption, caption_dim = 0.0, 0 if split.caption_features is None else split.caption_features.shape[-1]
    if texts is not None:
        chosen = split.texts[:CAPTIONS]
        seconds, features = _timed(lambda: texts.encode(chosen))
        caption, caption_dim = seconds / len(chosen), features.shape[-1]
    sizes = Sizes(image_dim, caption_dim)
    return Measured(image, caption, _heads_step(sizes), None if whole is None else _whole_step(split, whole)), sizes


def _seconds_per_image(files: ImageFiles, encoder: ImageEncoder) -> tuple[float, int]:
    sources = files.sources[:IMAGES]
    seconds, features = _timed(
        lambda: encoder.encode(torch.stack([encoder.prepare(open_image(source)) for source in sources]))
    )
    return seconds / len(sources), features.shape[-1]


def _heads_step(sizes: Sizes) -> float:
    generator = torch.Generator().manual_seed(0)
    model = build("heads", image_dim=sizes.image, caption_dim=sizes.caption)
    batch = MAX_BATCH[FEATURES]
    x = torch.randn(batch, sizes.image, generator=generator)
    y = torch.randn(batch, sizes.caption, generator=generator)
    return _step(model, x, lambda: model.encode_captions(y))


def _whole_step(split: Split, whole: Retriever) -> float:
    files = split.images()
    if files is None:
        raise ValueError("fine-tuning needs image files")
    count = min(MAX_BATCH[WHOLE], len(files))
    pixels, _ = whole.preprocess_images([open_image(source) for source in files.sources[:count]])
    first = [int((split.owners < row).sum()) for row in range(count)]  # of each image its first caption
    ids, lengths = whole.tokenize([split.texts[caption] for caption in first])
    return _step(whole.model, pixels, lambda: whole.model.encode_captions(ids, lengths))


def _step(model: RetrievalModel, images: torch.Tensor, encode_captions: Callable[[], torch.Tensor]) -> float:
    """One update."""
    train, optimizer = objective("nt-xent"), torch.optim.AdamW(model.parameters(), lr=0.0)
    model.train()

    def step() -> torch.Tensor:
        optimizer.zero_grad()
        loss = train(model.encode_images(images), encode_captions())
        loss.backward()
        optimizer.step()
        return loss.detach()

    return _timed(step)[0]


def _timed(work: Callable[[], torch.Tensor]) -> tuple[float, torch.Tensor]:
    work()  # the first call allocates memory and loads code
    began = time.perf_counter()
    result = work()
    return time.perf_counter() - began, result
