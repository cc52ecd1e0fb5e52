"""Fine-tuning of CLIP and SigLIP: our defaults, not from a paper."""

from typing import Any

from tercet.recipes.base import Recipe

_CLIP: dict[str, Any] = {
    "objective": "nt-xent",
    "epochs": 5,
    "learning_rate": 1e-5,
    "weight_decay": 0.1,
    "decay_norm_and_bias": False,
    "adam_beta2": 0.98,
    "grad_clip": 1.0,
}

DEFAULT = Recipe({}, _CLIP)
RECIPES = {
    "clip-b32": Recipe({"clip": "openai/clip-vit-base-patch32"}, _CLIP),
    "siglip-b16": Recipe({"clip": "google/siglip-base-patch16-224"}, _CLIP | {"objective": "sigmoid"}),
}
