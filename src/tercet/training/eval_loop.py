"""Evaluation of a model on a split: encode every item once, rank every positive; re-ranking with X-VLM."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from tercet.data.dataset import PairedData, Source
from tercet.data.samplers import by_length
from tercet.data.text.tokenized import TokenizedCaptions
from tercet.data.transforms import Pixels
from tercet.evaluation import Evaluation, Tiles, evaluate_tiles, tiles_of_blocks, tiles_of_embeddings
from tercet.evaluation.blocked_similarity import tiles_of_matrix
from tercet.evaluation.metrics import metric_names, metrics_of
from tercet.evaluation.ranks import Ranks
from tercet.evaluation.rerank import Reranked, rerank
from tercet.interfaces import CaptionBatchSize, Reranker, RetrievalModel
from tercet.names import suggest
from tercet.similarity import RaggedSets

IMAGES_PER_BLOCK = 256  # of S, when it is read in blocks of rows
BATCH_SIZE, PIXEL_BATCH_SIZE, RERANK_BATCH_SIZE = 512, 64, 32

Encoded = Tensor | RaggedSets
"""Vectors, or sets of vectors if the model compares regions with words."""


@torch.inference_mode()
def encode_split(model: RetrievalModel, data: PairedData) -> tuple[Encoded, Encoded]:
    """Encode images and captions, in float32 or the model's float64. Runs in evaluation mode and restores the mode."""
    was_training = model.training
    model.eval()
    try:
        images = _encode(model, data.images, model.encode_images)
        return images, _encode(model, data.captions, model.encode_captions)
    finally:
        model.train(was_training)


def tiles_of(model: RetrievalModel, images: Encoded, captions: Encoded) -> Tiles:
    """Return the similarity in tiles: dot products, or the model's own similarity block by block."""
    if isinstance(images, Tensor) and isinstance(captions, Tensor) and model.dot_product:
        return tiles_of_embeddings(images, captions)
    device = next(model.parameters()).device
    return tiles_of_blocks(lambda a, b: model.similarity(a.to(device), b.to(device)).cpu(), images, captions)


def evaluate_split(model: RetrievalModel, data: PairedData) -> Evaluation:
    """Return the metrics and the rank of every positive."""
    return evaluate_tiles(tiles_of(model, *encode_split(model, data)), data.owners, more_pairs=data.more_pairs)


def check_select_metric(select_metric: str) -> None:
    """Check --select-metric before training: only metrics whose larger values are better can select weights."""
    known = metric_names(larger_is_better=True)
    for name in select_metric.split("+"):
        if name not in known:
            hint = suggest(name, known)
            raise ValueError(f"--select-metric: {name!r} cannot select weights{hint}; allowed: {', '.join(known)}")


def selection_value(metrics: Mapping[str, float], select_metric: str) -> float:
    """Return the value that selects the best weights: a metric, or the sum of several joined by +."""
    return sum(metrics[name] for name in select_metric.split("+"))


def _encode(model: RetrievalModel, source: Source, encode: Callable[[Tensor, Tensor | None], Tensor]) -> Encoded:
    """Encode in batches; captions are sorted by length, so that little is padded."""
    weights = next(model.parameters())
    batch_size = PIXEL_BATCH_SIZE if isinstance(source, Pixels) else BATCH_SIZE
    if isinstance(source, TokenizedCaptions) and isinstance(model, CaptionBatchSize):
        batch_size = model.eval_batch_size
    lengths = source.lengths() if isinstance(source, TokenizedCaptions) else np.zeros(len(source), dtype=np.int64)
    batches = by_length(lengths, batch_size)
    encoded = []
    for batch in batches:
        items, item_lengths = source.take(batch)
        items = items.to(weights.device, weights.dtype) if items.is_floating_point() else items.to(weights.device)
        encoded.append(encode(items, None if item_lengths is None else item_lengths.to(weights.device)).cpu())
    order = torch.cat(batches).argsort()
    return RaggedSets.of(encoded)[order] if encoded[0].ndim == 3 else torch.cat(encoded)[order]


def check_reranking(models: Sequence[RetrievalModel], k: int, protocol: str) -> Reranker:
    """Check --rerank before the data is read; return the model that re-ranks."""
    if protocol == "coco-1k":
        raise ValueError(
            "--rerank re-ranks the top k of the whole split: it cannot be combined with the folds of coco-1k"
        )
    if k < 1:
        raise ValueError(f"--rerank must be at least 1 (candidates per query), got {k}")
    if len(models) != 1 or not isinstance(models[0], Reranker):
        raise ValueError("--rerank needs exactly one model, and it must have a matching head, like X-VLM")
    return models[0]


@torch.inference_mode()
def rerank_split(model: Reranker, data: PairedData, k: int) -> Reranked:
    """Rank with the encoders' similarity, then re-rank the top k of each query with the matching head."""
    device = next(model.parameters()).device
    tokens = torch.cat([model.image_tokens(items) for items, _ in _batches(data.images, device)])
    encoded = [(model.word_states(ids, lengths), lengths) for ids, lengths in _batches(data.captions, device)]
    max_length = max(states.shape[1] for states, _ in encoded)
    states = torch.cat([torch.nn.functional.pad(s, (0, 0, 0, max_length - s.shape[1])) for s, _ in encoded])
    lengths = torch.cat([batch_lengths for _, batch_lengths in encoded])
    similarity = model.similarity(model.image_features(tokens), model.caption_features(states))

    def match(images: Tensor, captions: Tensor) -> Tensor:
        width = int(lengths[captions].max())
        values: Tensor = model.match(tokens[images], states[captions, :width], lengths[captions])
        return values

    return rerank(similarity, match, k=k)


def evaluate_reranked(reranked: Reranked, owners: Tensor, **options: Any) -> Evaluation:
    """Evaluate each direction on its own matrix; `options` are those of `evaluate_tiles`."""
    i2t, t2i = (evaluate_tiles(tiles_of_matrix(similarity.cpu()), owners, **options) for similarity in reranked)
    ranks = Ranks(i2t.ranks.i2t, t2i.ranks.t2i, i2t.ranks.symmetric)
    note = "re-ranked: candidates outside the top k are tied, so that median and mean ranks are not meaningful"
    metrics = _merge_directions(i2t.metrics, t2i.metrics) | metrics_of(ranks)
    return Evaluation(metrics, ranks, (), (*i2t.notes, note))


def _merge_directions(i2t: dict[str, float], t2i: dict[str, float]) -> dict[str, float]:
    return {name: (t2i if "t2i_" in name else i2t)[name] for name in i2t}


def _batches(source: Source, device: torch.device) -> Iterator[tuple[Any, Any]]:
    for batch in torch.arange(len(source)).split(RERANK_BATCH_SIZE):
        items, lengths = source.take(batch)
        yield items.to(device), None if lengths is None else lengths.to(device)


@dataclass(frozen=True)
class EmbeddedSplit:
    """The evaluated split, embedded by one trained model."""

    name: str
    model: RetrievalModel
    images: Encoded
    captions: Encoded
    pairs: Int[Tensor, "pair 2"]
    """All positive (image, caption) pairs, the image that a caption belongs to first."""

    def owner(self, caption: int) -> int:
        """The image that is shown with a caption."""
        return int(self.pairs[caption, 0])

    def own(self, direction: str, query: int) -> Bool[np.ndarray, " candidate"]:
        """Mask of the positives of a query."""
        column, count = (0, len(self.captions)) if direction == "i2t" else (1, len(self.images))
        mask = np.zeros(count, dtype=bool)
        mask[self.pairs[self.pairs[:, column] == query, 1 - column].numpy()] = True
        return mask

    def captions_for(self, image: int) -> Float[np.ndarray, " caption"]:
        return self._similarity(self.images[image : image + 1], self.captions[:])[0]

    def images_for(self, caption: int) -> Float[np.ndarray, " image"]:
        return self._similarity(self.images[:], self.captions[caption : caption + 1])[:, 0]

    def blocks(self) -> Iterator[tuple[slice, Float[np.ndarray, "image caption"]]]:
        """Blocks of rows of S, so that the full matrix is never in memory."""
        for start in range(0, len(self.images), IMAGES_PER_BLOCK):
            block = slice(start, start + IMAGES_PER_BLOCK)
            yield block, self._similarity(self.images[block], self.captions[:])

    @torch.inference_mode()
    def _similarity(self, images: Tensor, captions: Tensor) -> np.ndarray:
        return np.asarray(self.model.similarity(images, captions).float().cpu().numpy())
