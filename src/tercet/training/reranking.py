"""A model that matches pairs closely looks again at the top k of each query: X-VLM's evaluation."""

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from tercet.data.pairs import PairedData, Source
from tercet.evaluation import Evaluation, evaluate_tiles
from tercet.evaluation.metrics import metrics_of
from tercet.evaluation.ranks import Ranks
from tercet.evaluation.rerank import Reranked, rerank
from tercet.evaluation.tiles import tiles_of_matrix

AT_ONCE = 32


def check_reranking(models: list[Any], k: int, protocol: str) -> None:
    """Before any work."""
    if protocol == "coco-1k":
        raise ValueError(
            "--rerank looks at the top of the whole split, coco-1k ranks within folds: they do not go together"
        )
    if k < 1:
        raise ValueError(f"--rerank must be at least 1, the candidates of a query to look at again, got {k}")
    if len(models) != 1 or not hasattr(models[0], "matching"):
        raise ValueError("--rerank is for one X-VLM: other models have nothing that looks again")


@torch.inference_mode()
def reranked(model: Any, data: PairedData, k: int) -> Reranked:
    """Of a split: what the towers find, matched again pair by pair."""
    device = next(model.parameters()).device
    tokens = torch.cat([model.image_tokens(items) for items, _ in _parts(data.images, device)])
    read = [(model.word_states(ids, lengths), lengths) for ids, lengths in _parts(data.captions, device)]
    longest = max(states.shape[1] for states, _ in read)
    states = torch.cat([torch.nn.functional.pad(s, (0, 0, 0, longest - s.shape[1])) for s, _ in read])
    lengths = torch.cat([each for _, each in read])
    similarity = model.similarity(model.image_features(tokens), model.caption_features(states))

    def match(images: Tensor, captions: Tensor) -> Tensor:
        width = int(lengths[captions].max())
        found: Tensor = model.match(tokens[images], states[captions, :width], lengths[captions])
        return found

    return rerank(similarity, match, k=k)


def evaluate_reranked(found: Reranked, owners: Tensor, **how: Any) -> Evaluation:
    """Each direction by its own similarities, under any protocol."""
    i2t, t2i = (evaluate_tiles(tiles_of_matrix(side.cpu()), owners, **how) for side in found)
    ranks = Ranks(i2t.ranks.i2t, t2i.ranks.t2i, i2t.ranks.symmetric)
    note = "re-ranked: what was not looked at again ties at the end, so that median and mean ranks say little"
    metrics = _directions(i2t.metrics, t2i.metrics) | metrics_of(ranks)
    return Evaluation(metrics, ranks, (), (*i2t.notes, note))


def _directions(i2t: dict[str, float], t2i: dict[str, float]) -> dict[str, float]:
    return {name: (t2i if "t2i_" in name else i2t)[name] for name in i2t}


def _parts(source: Source, device: torch.device) -> Iterator[tuple[Any, Any]]:
    for part in torch.arange(len(source)).split(AT_ONCE):
        items, lengths = source.take(part)
        yield items.to(device), None if lengths is None else lengths.to(device)
