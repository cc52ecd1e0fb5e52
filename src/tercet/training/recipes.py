"""Training settings of the published recipes, by the name of the model's preset; FACTS of each are in PAPERS.md."""

from typing import Any

# Adam without weight decay, gradients clipped at 2, the learning rate a tenth from an epoch on.
_LINEAGE: dict[str, Any] = {
    "epochs": 30,
    "batch_size": 128,
    "positives": "diagonal",
    "optimizer": "adam",
    "learning_rate": 2e-4,
    "weight_decay": 0.0,
    "schedule": "steps",
    "decay_epochs": (15,),
    "warm_up_epochs": 0.0,
    "clip": 2.0,
}
_VSRN = _LINEAGE | {"caption_weight": 1.0, "select": "i2t_r1+i2t_r5+t2i_r1+t2i_r5"}
_STUDY = _LINEAGE | {"decay_epochs": (15,)}
# An epoch of SmoothAP goes over images, each with five captions: five times the epochs make as many steps.
_STUDY_SMOOTH_AP = _STUDY | {
    "objective": "smooth-ap",
    "positives": "ids",
    "captions_each": 5,
    "epochs": 150,
    "decay_epochs": (75,),
}
_VSE_INFINITY = _LINEAGE | {
    "epochs": 25,
    "optimizer": "adamw",
    "learning_rate": 5e-4,
    "weight_decay": 1e-4,
    "first_objective": "triplet",
    "first_epochs": 1,
    "drop_regions": 0.2,
    "drop_words": 0.2,
}
_ATTENTION_F30K = _LINEAGE
_ATTENTION_COCO = _LINEAGE | {"epochs": 20, "learning_rate": 5e-4, "decay_epochs": (10,)}
_BFAN_F30K = _ATTENTION_F30K | {"epochs": 15, "decay_epochs": ()}
_BFAN_COCO = _ATTENTION_COCO | {"decay_epochs": (15,)}
# Learned temperature; without RandAugment, and transformers' Swin drops paths of attention alone.
_XVLM: dict[str, Any] = {
    "objective": "nt-xent",
    "objective_settings": {"reduction": "mean"},  # whatever takes the place of NT-Xent: matching is a mean too
    "match_weight": 1.0,
    "epochs": 10,
    "batch_size": 160,
    "optimizer": "adamw",
    "learning_rate": 3e-5,
    "weight_decay": 0.01,
    "decay_vectors": False,
    "second_beta": 0.98,
    "schedule": "linear",
    "warm_up_epochs": 1.0,
    "clip": None,
    "crop": "half",
}
_CLIP: dict[str, Any] = {
    "objective": "nt-xent",
    "epochs": 5,
    "learning_rate": 1e-5,
    "weight_decay": 0.1,
    "decay_vectors": False,
    "second_beta": 0.98,
    "clip": 1.0,
}
_BERT_RATE = {"captions.bert": 0.1}

RECIPES: dict[str, dict[str, Any]] = {
    "heads": {},
    "vsepp": _LINEAGE | {"positives": "ids"},
    "vsrn": _LINEAGE | {"positives": "ids"},
    "vse-infinity": _VSE_INFINITY | {"positives": "ids", "weight_decay": 1e-2},
    "xvlm": _XVLM,
    "clip": _CLIP,
    "scan": _LINEAGE | {"positives": "ids"},
    "bfan": _LINEAGE | {"positives": "ids"},
    "vsepp-f30k": _LINEAGE | {"crop": "area"},
    "vsepp-coco": _LINEAGE | {"crop": "area"},
    "vsepp-f30k-finetuned": _LINEAGE | {"crop": "area", "epochs": 15, "learning_rate": 2e-5, "decay_epochs": ()},
    "vsepp-coco-finetuned": _LINEAGE | {"crop": "area", "epochs": 15, "learning_rate": 2e-5, "decay_epochs": ()},
    "vsepp-precomp": _LINEAGE,
    "vsepp-order": _LINEAGE | {"objective_settings": {"margin": 0.05}, "learning_rate": 1e-3},
    "vsepp-study": _STUDY | {"crop": "area"},
    "vsepp-study-smooth-ap": _STUDY_SMOOTH_AP | {"crop": "area"},
    "vsrn-f30k": _VSRN | {"decay_epochs": (10, 20)},
    "vsrn-coco": _VSRN,
    "vsrn-study-f30k": _STUDY | {"decay_epochs": (10, 20), "select": _VSRN["select"]},
    "vsrn-study-f30k-smooth-ap": _STUDY_SMOOTH_AP | {"decay_epochs": (50, 100), "select": _VSRN["select"]},
    "vsrn-study-coco": _STUDY | {"select": _VSRN["select"]},
    "vsrn-study-coco-smooth-ap": _STUDY_SMOOTH_AP | {"select": _VSRN["select"]},
    "vse-infinity-butd": _VSE_INFINITY | {"part_rates": _BERT_RATE},
    "vse-infinity-butd-bigru": _VSE_INFINITY | {"weight_decay": 1e-2},
    "vse-infinity-grid": _VSE_INFINITY
    | {"part_rates": _BERT_RATE | {"backbone": 0.01}, "thaw_epoch": 1, "ramp_epoch": 1, "crop": "sides"}
    | {"picture_side": 512, "warp": True},
    "scan-t2i-f30k": _ATTENTION_F30K,
    "scan-i2t-f30k": _ATTENTION_F30K,
    "scan-t2i-coco": _ATTENTION_COCO,
    "scan-i2t-coco": _ATTENTION_COCO,
    "bfan-f30k": _BFAN_F30K,
    "bfan-prob-f30k": _BFAN_F30K,
    "bfan-coco": _BFAN_COCO,
    "bfan-prob-coco": _BFAN_COCO,
    "xvlm-f30k": _XVLM,
    "xvlm-coco": _XVLM,
    "xvlm-tiny": _XVLM | {"batch_size": 64, "learning_rate": 1e-3, "clip": 2.0, "crop": "none"},
    "clip-b32": _CLIP,
    "siglip-b16": _CLIP | {"objective": "sigmoid"},
}


# The second round of AOQ, by the beginning of the preset's name: what it changes. The authors released VSRN's and
# BFAN's; SCAN's is as long as BFAN's. BFAN on COCO keeps the rate of its first round, 5e-4.
_SECOND_ROUND: dict[str, dict[str, Any]] = {
    "vsrn": {"epochs": 20, "learning_rate": 2e-4, "decay_epochs": (10,)},
    "bfan-coco": {"epochs": 15, "decay_epochs": (10,)},
    "bfan-prob-coco": {"epochs": 15, "decay_epochs": (10,)},
    "bfan": {"epochs": 15, "learning_rate": 2e-4, "decay_epochs": (10,)},
    "scan": {"epochs": 15, "decay_epochs": (10,)},
}


def recipe_of(model: str, which_round: int = 1) -> dict[str, Any]:
    """What the papers say, for a model of this name; nothing where they say nothing."""
    recipe = RECIPES.get(model, {})
    if which_round != 2:
        return recipe
    changes = next((change for name, change in _SECOND_ROUND.items() if model.startswith(name)), {})
    return recipe | {"objective": "aoq"} | changes
