"""Recipes of VSRN (Li et al., ICCV 2019), also as trained in the COCOS comparison study, and AOQ's second round."""

from typing import Any

from tercet.recipes.base import STUDY, STUDY_SMOOTH_AP, VSE_LINEAGE, Recipe

_SELECT = {"select_metric": "i2t_r1+i2t_r5+t2i_r1+t2i_r5"}
_VSRN = VSE_LINEAGE | _SELECT | {"caption_weight": 1.0}
_STUDY_F30K = {"variant": "f30k", "captioner": False}
_STUDY_COCO = {"variant": "both", "captioner": False}

DEFAULT = Recipe({}, VSE_LINEAGE | {"positives": "ids"})
RECIPES = {
    "vsrn-f30k": Recipe({"variant": "f30k", "captioner": True}, _VSRN | {"decay_epochs": (10, 20)}),
    "vsrn-coco": Recipe({"variant": "coco", "captioner": True}, _VSRN),
    "vsrn-study-f30k": Recipe(_STUDY_F30K, STUDY | _SELECT | {"decay_epochs": (10, 20)}),
    "vsrn-study-f30k-smooth-ap": Recipe(_STUDY_F30K, STUDY_SMOOTH_AP | _SELECT | {"decay_epochs": (50, 100)}),
    "vsrn-study-coco": Recipe(_STUDY_COCO, STUDY | _SELECT),
    "vsrn-study-coco-smooth-ap": Recipe(_STUDY_COCO, STUDY_SMOOTH_AP | _SELECT),
}
# By prefix of the recipe name: changes for AOQ's second round, as released.
SECOND_ROUND: dict[str, dict[str, Any]] = {"vsrn": {"epochs": 20, "learning_rate": 2e-4, "decay_epochs": (10,)}}
