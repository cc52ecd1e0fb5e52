"""Tercet trains, compares and dissects objectives for image-text retrieval."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tercet.analysis.check import check_objective
    from tercet.analysis.cocos import cocos
    from tercet.comparison.compare import compare
    from tercet.evaluation import evaluate, evaluate_embeddings
    from tercet.objectives import objective
    from tercet.retriever import load, load_original
    from tercet.training.run import train

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

# Where each public name lives. Looked up on first use: `import tercet` and `tercet --help` need no torch.
_HOMES = {
    "check_objective": "tercet.analysis.check",
    "cocos": "tercet.analysis.cocos",
    "compare": "tercet.comparison.compare",
    "evaluate": "tercet.evaluation",
    "evaluate_embeddings": "tercet.evaluation",
    "load": "tercet.retriever",
    "load_original": "tercet.retriever",
    "objective": "tercet.objectives",
    "train": "tercet.training.run",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'tercet' has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted([*__all__, "__version__"])
