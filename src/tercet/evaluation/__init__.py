"""S -> ranks -> metrics, under named protocols. Ties count against the positive unless told otherwise."""

from tercet.evaluation.evaluator import evaluate, evaluate_embeddings, evaluate_tiles
from tercet.evaluation.pairs import Pairs, Positives
from tercet.evaluation.protocols import PROTOCOLS, Evaluation
from tercet.evaluation.ranks import Ranks, rank_positives
from tercet.evaluation.tiles import Tiles, mean_of_tiles, tiles_of_blocks, tiles_of_embeddings, tiles_of_matrix

__all__ = [
    "PROTOCOLS",
    "Evaluation",
    "Pairs",
    "Positives",
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
