"""Files of trec_eval, which ranx and ir_measures read too: `write("out", similarity, positives)`."""

from pathlib import Path

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from tercet.storage import atomic_directory
from tercet.types import PairMask, Similarity


def write(
    folder: str | Path, similarity: Similarity, positives: PairMask, *, depth: int = 1000, name: str = "tercet"
) -> Path:
    """Write `i2t.qrels`, `i2t.run`, `t2i.qrels` and `t2i.run` into a new folder; ids are i0, i1, ... and t0, t1, ...

    Runs hold the `depth` most similar candidates of every query. trec_eval breaks ties by the id of the document, not
    by the rank that is written here: with ties its numbers differ from those of `tercet.evaluate`.
    """
    if similarity.shape != positives.shape or positives.dtype != torch.bool:
        raise ValueError(f"positives must be a boolean mask of shape {tuple(similarity.shape)}")
    with atomic_directory(Path(folder)) as unfinished:
        for direction, s, mask in (("i2t", similarity, positives), ("t2i", similarity.T, positives.T)):
            (unfinished / f"{direction}.qrels").write_text(_qrels(mask, direction))
            (unfinished / f"{direction}.run").write_text(_run(s, direction, depth, name))
    return Path(folder)


def _qrels(positives: Bool[Tensor, "anchor candidate"], direction: str) -> str:
    return "".join(f"{direction[0]}{q} 0 {direction[-1]}{d} 1\n" for q, d in positives.nonzero().tolist())


def _run(similarity: Float[Tensor, "anchor candidate"], direction: str, depth: int, name: str) -> str:
    values, candidates = similarity.double().topk(min(depth, similarity.shape[1]), dim=1)
    rows = enumerate(zip(values.tolist(), candidates.tolist(), strict=True))
    return "".join(
        f"{direction[0]}{q} Q0 {direction[-1]}{d} {rank} {value!r} {name}\n"
        for q, (of_query, documents) in rows
        for rank, (value, d) in enumerate(zip(of_query, documents, strict=True), start=1)
    )
