"""Recipes of X-VLM (Zeng et al., ICML 2022), fine-tuned for retrieval, and a tiny configuration for CPUs."""

from typing import Any

from tercet.recipes.base import Recipe

# With the learned temperature; without RandAugment; transformers' Swin applies drop path only to attention.
_XVLM: dict[str, Any] = {
    "objective": "nt-xent",
    "objective_settings": {"reduction": "mean"},  # for any objective, as the matching loss is a mean too
    "itm_weight": 1.0,
    "epochs": 10,
    "batch_size": 160,
    "optimizer": "adamw",
    "learning_rate": 3e-5,
    "weight_decay": 0.01,
    "decay_norm_and_bias": False,
    "adam_beta2": 0.98,
    "schedule": "linear",
    "warmup_epochs": 1.0,
    "grad_clip": None,
    "crop": "half",
}
_PUBLISHED = {"vision": "microsoft/swin-base-patch4-window12-384", "text": "bert-base-uncased"}
# Small enough to learn `scenes` on a CPU; uses a word vocabulary.
_TINY = {
    "vision": {
        "model_type": "swin",
        "image_size": 64,
        "embed_dim": 24,
        "depths": [2, 2],
        "num_heads": [2, 4],
        "window_size": 8,
        "initializer_range": 0.1,  # 0.02 suits widths of hundreds
    },
    "text": {
        "model_type": "bert",
        "hidden_size": 64,
        "num_hidden_layers": 4,
        "num_attention_heads": 4,
        "intermediate_size": 128,
        "max_position_embeddings": 64,
        "initializer_range": 0.1,
    },
    "fusion_layer": 2,
    "embed_dim": 64,
}

DEFAULT = Recipe({}, _XVLM)
RECIPES = {
    "xvlm-f30k": Recipe(_PUBLISHED, _XVLM),
    "xvlm-coco": Recipe(_PUBLISHED, _XVLM),
    "xvlm-tiny": Recipe(_TINY, _XVLM | {"batch_size": 64, "learning_rate": 1e-3, "grad_clip": 2.0, "crop": "none"}),
}
