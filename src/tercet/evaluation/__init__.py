"""Retrieval evaluation: S -> ranks -> metrics, under named protocols.

`evaluator.py` is the public entry, `ranks.py` computes the rank of every positive, `metrics.py` counts R@k and the
other metrics from ranks. By default ties count against the positive.
"""

from tercet.evaluation.blocked_similarity import (
    Tiles,
    mean_of_tiles,
    tiles_of_blocks,
    tiles_of_embeddings,
    tiles_of_matrix,
)
from tercet.evaluation.evaluator import PROTOCOLS, Evaluation, evaluate, evaluate_embeddings, evaluate_tiles
from tercet.evaluation.rank_counts import PositivePairs, Positives
from tercet.evaluation.ranks import Ranks, RankTable, rank_positives

__all__ = [
    "PROTOCOLS",
    "Evaluation",
    "PositivePairs",
    "Positives",
    "RankTable",
    "Ranks",
    "Tiles",
    "evaluate",
    "evaluate_embeddings",
    "evaluate_tiles",
    "mean_of_tiles",
    "rank_positives",
    "tiles_of_blocks",
    "tiles_of_embeddings",
    "tiles_of_matrix",
]
