"""Recipes of VSE++ (Faghri et al., BMVC 2018), also as trained in the COCOS comparison study."""

from tercet.recipes.base import STUDY, STUDY_SMOOTH_AP, VSE_LINEAGE, Recipe

_CROPPED = VSE_LINEAGE | {"crop": "area"}
_FINETUNED = _CROPPED | {"epochs": 15, "learning_rate": 2e-5, "decay_epochs": ()}
_RESNET_152 = {"backbone": "microsoft/resnet-152"}
_RESNET_50 = {"backbone": "microsoft/resnet-50"}

DEFAULT = Recipe({}, VSE_LINEAGE | {"positives": "ids"})
RECIPES = {
    "vsepp-f30k": Recipe(_RESNET_152, _CROPPED),
    "vsepp-coco": Recipe(_RESNET_152, _CROPPED),
    "vsepp-f30k-finetuned": Recipe(_RESNET_152 | {"train_backbone": True}, _FINETUNED),
    "vsepp-coco-finetuned": Recipe(_RESNET_152 | {"train_backbone": True}, _FINETUNED),
    "vsepp-precomp": Recipe({"image_dim": 4096}, VSE_LINEAGE),
    "vsepp-order": Recipe(
        {"image_dim": 4096, "measure": "order", "absolute": True},
        VSE_LINEAGE | {"objective_settings": {"margin": 0.05}, "learning_rate": 1e-3},
    ),
    "vsepp-study": Recipe(_RESNET_50, STUDY | {"crop": "area"}),
    "vsepp-study-smooth-ap": Recipe(_RESNET_50, STUDY_SMOOTH_AP | {"crop": "area"}),
}
