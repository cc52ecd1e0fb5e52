"""Tercet trains, compares and dissects objectives for image-text retrieval."""

from typing import TYPE_CHECKING

from tercet.names import lazy_exports

if TYPE_CHECKING:
    from tercet.analysis.cocos import cocos
    from tercet.analysis.gradcheck import check_objective
    from tercet.comparison.compare import compare
    from tercet.evaluation import evaluate, evaluate_embeddings
    from tercet.inference import load, load_original
    from tercet.objectives import objective
    from tercet.training.train import train

__version__ = "0.1.0"
__all__ = [
    "check_objective",
    "cocos",
    "compare",
    "evaluate",
    "evaluate_embeddings",
    "load",
    "load_original",
    "objective",
    "train",
]

# Module of each public name, imported on first use: `import tercet` and `tercet --help` must not import torch.
_MODULES = {
    "check_objective": "tercet.analysis.gradcheck",
    "cocos": "tercet.analysis.cocos",
    "compare": "tercet.comparison.compare",
    "evaluate": "tercet.evaluation",
    "evaluate_embeddings": "tercet.evaluation",
    "load": "tercet.inference",
    "load_original": "tercet.inference",
    "objective": "tercet.objectives",
    "train": "tercet.training.train",
}


__getattr__ = lazy_exports("tercet", _MODULES)


def __dir__() -> list[str]:
    return sorted([*__all__, "__version__"])
