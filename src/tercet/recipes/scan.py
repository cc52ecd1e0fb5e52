"""Recipes of SCAN (Lee et al., ECCV 2018), and AOQ's second round for it."""

from typing import Any

from tercet.recipes.base import VSE_LINEAGE, Recipe

F30K = VSE_LINEAGE
COCO = VSE_LINEAGE | {"epochs": 20, "learning_rate": 5e-4, "decay_epochs": (10,)}
_I2T = {"direction": "i2t", "inverse_temperature": 4.0}

DEFAULT = Recipe({}, VSE_LINEAGE | {"positives": "ids"})
RECIPES = {
    "scan-t2i-f30k": Recipe({}, F30K),
    "scan-t2i-coco": Recipe({}, COCO),
    "scan-i2t-f30k": Recipe(_I2T | {"pooling_inverse_temperature": 5.0}, F30K),
    "scan-i2t-coco": Recipe(_I2T | {"pooling_inverse_temperature": 20.0}, COCO),
}
# The authors of AOQ released no settings for SCAN: these are as long as BFAN's.
SECOND_ROUND: dict[str, dict[str, Any]] = {"scan": {"epochs": 15, "decay_epochs": (10,)}}
