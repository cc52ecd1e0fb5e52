"""Recipes of VSE-infinity (Chen et al., CVPR 2021)."""

from tercet.recipes.base import VSE_LINEAGE, Recipe

_VSE_INFINITY = VSE_LINEAGE | {
    "epochs": 25,
    "optimizer": "adamw",
    "learning_rate": 5e-4,
    "weight_decay": 1e-4,
    "warmup_objective": "triplet",
    "warmup_objective_epochs": 1,
    "drop_regions": 0.2,
    "drop_words": 0.2,
}
_BERT = {"bert": "bert-base-uncased"}
_BERT_LR = {"captions.bert": 0.1}

DEFAULT = Recipe({}, _VSE_INFINITY | {"positives": "ids", "weight_decay": 1e-2})
RECIPES = {
    "vse-infinity-butd": Recipe({"image_dim": 2048, **_BERT}, _VSE_INFINITY | {"lr_multipliers": _BERT_LR}),
    "vse-infinity-butd-bigru": Recipe({"image_dim": 2048}, _VSE_INFINITY | {"weight_decay": 1e-2}),
    "vse-infinity-grid": Recipe(
        {"backbone": "microsoft/resnet-101", **_BERT},
        _VSE_INFINITY
        | {
            "lr_multipliers": _BERT_LR | {"backbone": 0.01},
            "unfreeze_epoch": 1,
            "ramp_epoch": 1,
            "crop": "sides",
            "image_size": 512,
            "squash": True,
        },
    ),
}
