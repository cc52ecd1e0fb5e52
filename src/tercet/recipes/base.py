"""The recipe type, and the training settings shared by VSE++ and its successors."""

from typing import Any, NamedTuple


class Recipe(NamedTuple):
    """Settings given in the paper. What depends on the dataset (vocabulary size, feature dimension) is left open."""

    model: dict[str, Any]
    """Model settings, for `tercet.models.build`."""
    training: dict[str, Any]
    """Training settings, with the field names of `TrainSettings`."""


# Adam without weight decay, gradient norm clipped at 2, learning rate divided by 10 at given epochs.
VSE_LINEAGE: dict[str, Any] = {
    "epochs": 30,
    "batch_size": 128,
    "positives": "diagonal",
    "optimizer": "adam",
    "learning_rate": 2e-4,
    "weight_decay": 0.0,
    "schedule": "steps",
    "decay_epochs": (15,),
    "warmup_epochs": 0.0,
    "grad_clip": 2.0,
}
# The COCOS comparison study, on VSE++ and VSRN.
STUDY = VSE_LINEAGE | {"decay_epochs": (15,)}
# With SmoothAP an epoch is over images, each with five captions: five times the epochs give the same number of steps.
STUDY_SMOOTH_AP = STUDY | {
    "objective": "smooth-ap",
    "positives": "ids",
    "captions_per_image": 5,
    "epochs": 150,
    "decay_epochs": (75,),
}
