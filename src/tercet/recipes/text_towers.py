"""Two text towers: our defaults, not from a paper."""

from typing import Any

from tercet.recipes.base import Recipe

_GRU: dict[str, Any] = {"objective": "nt-xent", "epochs": 15, "learning_rate": 1e-3, "grad_clip": 2.0}
_BERT: dict[str, Any] = {
    "objective": "nt-xent",
    "objective_settings": {"temperature": 0.05},
    "epochs": 3,
    "learning_rate": 2e-5,
    "weight_decay": 0.01,
    "decay_norm_and_bias": False,
    "grad_clip": 1.0,
}

DEFAULT = Recipe({}, _GRU)
RECIPES = {
    "text-towers-bert": Recipe({"text": "bert-base-uncased"}, _BERT),
    "text-towers-minilm": Recipe({"text": "sentence-transformers/all-MiniLM-L6-v2"}, _BERT),
}
