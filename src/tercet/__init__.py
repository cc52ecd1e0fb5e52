"""Tercet trains, compares and dissects objectives for image-text retrieval."""

from typing import TYPE_CHECKING

from tercet.names import lazy_exports

if TYPE_CHECKING:
    from tercet import integrations, objectives, plugins
    from tercet.analysis.cocos import cocos
    from tercet.analysis.gradcheck import CheckReport, check_objective
    from tercet.api import compare, fit, train
    from tercet.comparison.compare import Comparison
    from tercet.comparison.family import Significance, significance
    from tercet.data.dataset import DataSet
    from tercet.data.formats import open_data
    from tercet.evaluation import evaluate, evaluate_embeddings
    from tercet.exporting import export
    from tercet.fitting.run_fit import Fitted
    from tercet.inference import Retriever, load, load_original
    from tercet.models import build
    from tercet.objectives import Queue, RowObjective, objective
    from tercet.search.searcher import Searcher
    from tercet.training.trained import Trained
    from tercet.training.watch import Watcher, watch

__version__ = "0.1.0"
__all__ = [
    "CheckReport",
    "Comparison",
    "DataSet",
    "Fitted",
    "Queue",
    "Retriever",
    "RowObjective",
    "Searcher",
    "Significance",
    "Trained",
    "Watcher",
    "build",
    "check_objective",
    "cocos",
    "compare",
    "evaluate",
    "evaluate_embeddings",
    "export",
    "fit",
    "integrations",
    "load",
    "load_original",
    "objective",
    "objectives",
    "open_data",
    "plugins",
    "significance",
    "train",
    "watch",
]

# Module of each public name, imported on first use: `import tercet` and `tercet --help` must not import torch.
_MODULES = {
    "CheckReport": "tercet.analysis.gradcheck",
    "Comparison": "tercet.comparison.compare",
    "DataSet": "tercet.data.dataset",
    "Fitted": "tercet.fitting.run_fit",
    "Queue": "tercet.objectives",
    "Retriever": "tercet.inference",
    "RowObjective": "tercet.objectives",
    "Searcher": "tercet.search.searcher",
    "Significance": "tercet.comparison.family",
    "Trained": "tercet.training.trained",
    "Watcher": "tercet.training.watch",
    "build": "tercet.models",
    "check_objective": "tercet.analysis.gradcheck",
    "cocos": "tercet.analysis.cocos",
    "compare": "tercet.api",
    "evaluate": "tercet.evaluation",
    "evaluate_embeddings": "tercet.evaluation",
    "export": "tercet.exporting",
    "fit": "tercet.api",
    "integrations": "tercet",
    "load": "tercet.inference",
    "load_original": "tercet.inference",
    "objective": "tercet.objectives",
    "objectives": "tercet",
    "open_data": "tercet.data.formats",
    "plugins": "tercet",
    "significance": "tercet.comparison.family",
    "train": "tercet.api",
    "watch": "tercet.training.watch",
}


__getattr__ = lazy_exports("tercet", _MODULES)


def __dir__() -> list[str]:
    return sorted([*__all__, "__version__"])
