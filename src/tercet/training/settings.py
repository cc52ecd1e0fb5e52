"""What a training run can be told. Imports nothing heavy: `--help` must be quick."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from difflib import get_close_matches
from pathlib import Path
from typing import Annotated, Any, Literal, get_type_hints

import tyro

from tercet.training.kinds import as_kept, flag


def named_values(given: Sequence[str]) -> dict[str, Any]:
    """`joint_dim=512 kind=mlp` as a dict; values are read as JSON where they can be."""
    found = {}
    for item in given:
        name, sign, value = item.partition("=")
        if not sign or not name:
            raise ValueError(f"expected name=value, got {item!r}")
        try:
            found[name] = json.loads(value)
        except json.JSONDecodeError:
            found[name] = value
    return found


NamedValues = Annotated[
    dict[str, Any],
    tyro.constructors.PrimitiveConstructorSpec(
        nargs="*",
        metavar="NAME=VALUE ...",
        instance_from_str=named_values,
        is_instance=lambda instance: isinstance(instance, dict),
        str_from_instance=lambda instance: [f"{name}={json.dumps(value)}" for name, value in instance.items()],
    ),
]
Names = Annotated[tuple[str, ...], tyro.conf.arg(metavar="NAME ...")]


@dataclass(frozen=True)
class TrainSettings:
    """Train a retrieval model with one objective; keep the weights that are best on validation.

    Finished runs are kept in run folders and never repeated. Stop at any moment, even by pulling the plug, and call
    again: it goes on where it was, and ends with the very same weights.
    """

    data: str = "scenes"
    """A file or folder that `tercet data inspect` knows; or scenes, the generated world (scenes:500 for fewer)."""
    model: str = "heads"
    """A system (heads, vsepp, vsrn, vse-infinity, scan, bfan, xvlm, clip) or a published recipe (vsepp-f30k,
    scan-t2i-coco, ...)."""
    objective: str = "triplet-sh"
    """A name of the catalogue, or your own as path/to/mine.py:function."""
    seed: int = 0
    """Of everything that is random. Equal settings and an equal seed give equal weights."""

    model_settings: NamedValues = field(default_factory=dict)
    """Settings of the model, such as joint_dim=512."""
    objective_settings: NamedValues = field(default_factory=dict)
    """Settings of the objective, such as temperature=0.05."""
    start_from: str | None = None
    """A run or saved model whose weights are the first ones: the second stage of VSE++."""

    features: str | None = None
    """Which features: {split}_{features}.npy of a precomp folder (default ims), or regions of scenes."""
    images: Path | None = None
    """Folder of image files, where it is not found beside the data."""
    train_split: str = "train"
    """train+restval joins two, as COCO's users do."""
    validation_split: str = "val"
    """Chooses the best weights. Where the data has none, the last ones are kept."""
    test_split: str = "test"
    """Evaluated once, at the end, with the chosen weights."""

    epochs: int = 12
    """Passes over the training captions; with --captions-each, over the training images."""
    epoch_steps: int | None = None
    """So many steps make an epoch, over as many passes as it takes: what makes runs with other batches comparable.
    None for one pass."""
    batch_size: int = 128
    """Pairs of a step; with --captions-each, images of a step."""
    captions_each: int | None = None
    """So many captions of each image in a step, for objectives that rank several positives; None pairs them singly."""
    positives: Literal["ids", "diagonal"] = "ids"
    """diagonal: an image met twice in a batch is a negative of its own other caption, as in the published programs."""
    ignore_equal_text: bool = False
    """A caption that stands word for word under another image too is no negative of that image."""
    drop_regions: float = 0.0
    """Share of regions left out of an image while training: size augmentation."""
    drop_words: float = 0.0
    """Share of words altered or left out of a caption while training."""
    crop: Literal["none", "area", "half", "sides"] = "none"
    """Random parts of pictures while training, half of them mirrored, for models of pixels: area as in VSE++ (8 to
    100 % of it), half as in X-VLM (50 to 100 % of it), sides as in VSE-infinity (60 to 100 % of both)."""

    picture_side: int = 224
    """Pixels of a side of the square that a model of pixels sees."""
    warp: bool = False
    """The whole picture is warped to the square; otherwise its middle is cut out."""

    first_objective: str | None = None
    """Trains the first epochs in place of the objective: triplet, which uses all negatives, where the hardest ones
    alone would collapse the model."""
    first_epochs: int = 1
    """How many epochs the first objective gets."""
    caption_weight: float = 0.0
    """Weight of the caption decoder's loss, for VSRN with captioner."""
    match_weight: float = 0.0
    """Weight of the loss of matching pairs with hard negatives, for X-VLM."""
    objective_weight: float = 1.0
    """Weight of the objective itself, beside a second loss."""

    round: Literal[1, 2] = 1
    """2: the second round of AOQ, with the values of its recipe where nothing else is asked for; it needs --mined.
    From random weights as released, or with --start-from from those of the first round."""
    mined: str | None = None
    """A table that `tercet mine` wrote of the training split, or a folder with the authors' lists: for off-tri,
    off-quin and aoq, or with --mined-as-candidates."""
    mined_top: int = 300
    """Captions of an image's list that are drawn from; of a caption's images so many fewer as there are fewer."""
    mined_draw: Literal["uniform", "normal", "similarity"] = "uniform"
    """How: all alike, rather the middle of the list, or rather the most similar."""
    mined_as_candidates: bool = False
    """Mined images and captions are further rows and columns of S, for any other objective of a dual encoder."""
    mine_every: int | None = None
    """Mine again with the weights of the moment after every so many epochs."""

    optimizer: Literal["adamw", "adam"] = "adamw"
    """adam adds --weight-decay to the gradient, adamw takes it off the weights."""
    learning_rate: float = 1e-3
    """The peak, the same for every objective and chosen by no result."""
    weight_decay: float = 0.01
    """How strongly weights are drawn to 0."""
    decay_vectors: bool = True
    """Draw biases and the factors of norms to 0 too; X-VLM does not."""
    second_beta: float = 0.999
    """How long Adam remembers the size of gradients."""
    part_rates: NamedValues = field(default_factory=dict)
    """Factors on the learning rate of parts by the beginning of their name, such as backbone=0.01."""
    schedule: Literal["cosine", "linear", "steps", "constant"] = "cosine"
    """cosine and linear fall to 0 at the end; steps multiplies by --decay at each of --decay-epochs."""
    warm_up_epochs: float = 1.0
    """The learning rate rises for so long."""
    decay_epochs: Annotated[tuple[int, ...], tyro.conf.arg(metavar="EPOCH ...")] = ()
    """Epochs, counted from 0, from which on the learning rate is multiplied by --decay once more."""
    decay: float = 0.1
    """The factor at each of --decay-epochs."""
    clip: float | None = 2.0
    """Largest norm of the gradient of all weights together; None for no limit."""
    accumulate: int = 1
    """Batches whose gradients are averaged into one step. Negatives come from each batch alone: see --grad-cache."""
    frozen: Names = ()
    """Parts that are not trained, by the beginning of their name."""
    thaw_epoch: int = 0
    """The backbone is frozen before this epoch."""
    ramp_epoch: int | None = None
    """Through this epoch the gradient grows from 0 to its full size: the backbone's warm-up of VSE-infinity."""

    grad_cache: int | None = None
    """Encode so many items at a time and get the exact gradient of the whole batch: for batches beyond memory."""
    precision: Literal["float32", "bf16", "float64"] = "float32"
    """bf16 encodes in mixed precision; similarities and gradients on them stay float32."""
    compile: bool = False
    """Compile the encoders. Results differ in the last digits."""

    select: str = "rsum"
    """The metric on validation that chooses the weights; several joined by + are added: i2t_r1+t2i_r1."""
    cocos_every: int = 20
    """Count contributing samples at every so manieth step; 0 for never."""

    config: Path | None = None
    """A JSON or YAML file of settings, such as settings.json of a run; what is named beside it wins."""
    runs: Path = Path("runs")
    """Where run folders go."""
    resume: bool = True
    """Go on with an unfinished run of the same settings; --no-resume begins anew."""
    checkpoint_every: int = 200
    """Steps between checkpoints; one is written after every epoch too."""
    workers: int = 0
    """Threads that make batches ahead."""
    device: str | None = None
    """cpu, cuda, cuda:1, ...; None takes cuda where there is one."""
    tensorboard: bool = False
    """Also write what is in metrics.jsonl for TensorBoard, into the run folder."""

    def __post_init__(self) -> None:
        _check(self)


# How a run is carried out, not what it is: two runs that differ in these alone are the same run.
CONDUCT = ("config", "runs", "resume", "checkpoint_every", "workers", "device", "tensorboard")
NEED_A_TABLE = ("mined_as_candidates", "mine_every", "round", "mined_top", "mined_draw")
WEIGHTS_OF_LOSSES = ("caption_weight", "match_weight", "objective_weight")
KNOWN = [item.name for item in fields(TrainSettings)]
WHOLE = {"epochs": 1, "batch_size": 2, "accumulate": 1, "checkpoint_every": 1, "workers": 0, "cocos_every": 0}
WHOLE |= {
    "captions_each": 1,
    "epoch_steps": 1,
    "grad_cache": 1,
    "picture_side": 1,
    "seed": 0,
    "thaw_epoch": 0,
    "ramp_epoch": 0,
    "mined_top": 1,
    "mine_every": 1,
}


def settings_of(recipe: Mapping[str, Any], given: Mapping[str, Any]) -> TrainSettings:
    """Defaults, then what a recipe says, then what was asked for."""
    for name in given:
        if name not in KNOWN:
            near = get_close_matches(name, KNOWN, n=1)
            hint = f" (did you mean {near[0]}?)" if near else ""
            raise ValueError(f"train has no setting {name!r}{hint}; it has: {', '.join(KNOWN)}")
    # Those of the recipe are for its objective, and are looked at where the objective is made.
    wanted = {name: value for name, value in recipe.items() if name != "objective_settings"} | dict(given)
    if wanted.get("schedule", "steps") != "steps" and "decay_epochs" not in given:
        wanted.pop("decay_epochs", None)  # they belong to the recipe's own schedule
    kinds = get_type_hints(TrainSettings)
    return replace(TrainSettings(), **{name: as_kept(name, value, kinds[name]) for name, value in wanted.items()})


def identity_of(settings: TrainSettings) -> dict[str, Any]:
    """What makes the run, ready for JSON."""
    return {name: value for name, value in asdict(settings).items() if name not in CONDUCT} | {
        "images": None if settings.images is None else str(settings.images)
    }


def _check(settings: TrainSettings) -> None:
    for name, least in WHOLE.items():
        value = getattr(settings, name)
        if value is not None and value < least:
            raise ValueError(f"{flag(name)} must be a whole number of at least {least}, got {value!r}")
    for name in ("learning_rate", "weight_decay", "warm_up_epochs", *WEIGHTS_OF_LOSSES):
        if not 0 <= getattr(settings, name) < float("inf"):
            raise ValueError(f"{flag(name)} must be a number of at least 0, got {getattr(settings, name)!r}")
    _check_shares(settings)
    if settings.clip is not None and not settings.clip > 0:
        raise ValueError(f"--clip must be above 0, got {settings.clip}; --clip None is no limit")
    if not 0 <= settings.second_beta < 1:
        raise ValueError(f"--second-beta must be at least 0 and below 1, got {settings.second_beta}")
    if not 0 < settings.decay <= 1:
        raise ValueError(f"--decay must be above 0 and at most 1, got {settings.decay}")
    if settings.seed >= 2**63:
        raise ValueError(f"--seed must be below 2^63, got {settings.seed}")
    _check_together(settings)
    _check_mined(settings)


def _check_shares(settings: TrainSettings) -> None:
    for part, factor in settings.part_rates.items():
        if not isinstance(factor, (int, float)) or isinstance(factor, bool) or not 0 <= factor < float("inf"):
            raise ValueError(f"--part-rates {part} must be a number of at least 0, got {factor!r}")
    for name in ("drop_regions", "drop_words"):
        if not 0 <= getattr(settings, name) < 1:
            raise ValueError(f"{flag(name)} must be a share from 0 to below 1, got {getattr(settings, name)!r}")


def _check_mined(settings: TrainSettings) -> None:
    if settings.mined is None:
        for name in NEED_A_TABLE:
            if getattr(settings, name) != TrainSettings.__dataclass_fields__[name].default:
                raise ValueError(f"{flag(name)} needs --mined: `tercet mine` writes such a table")
    if settings.mined_as_candidates:
        for name in ("caption_weight", "match_weight"):
            if getattr(settings, name):
                raise ValueError(f"--mined-as-candidates does not go with {flag(name)}, which wants pairs row by row")
        if settings.positives == "diagonal":
            raise ValueError("--mined-as-candidates goes by ids: --positives diagonal knows only rows")


def _check_together(settings: TrainSettings) -> None:
    if settings.positives == "diagonal" and settings.captions_each is not None:
        raise ValueError("--positives diagonal pairs captions singly; it does not go with --captions-each")
    if settings.decay_epochs and settings.schedule != "steps":
        raise ValueError("--decay-epochs belong to --schedule steps")
    if settings.schedule == "steps" and list(settings.decay_epochs) != sorted(set(settings.decay_epochs)):
        raise ValueError(f"--decay-epochs must ascend, got {settings.decay_epochs}")
    if settings.grad_cache is not None and (settings.caption_weight or settings.match_weight):
        raise ValueError(
            "--grad-cache encodes images and captions apart: neither the caption decoder nor matching can be trained "
            "with it"
        )
    if settings.validation_split == settings.test_split:
        raise ValueError(f"--validation-split and --test-split are both {settings.test_split}: test never chooses")
    if settings.first_objective is not None and settings.first_epochs < 1:
        raise ValueError("--first-objective needs --first-epochs of at least 1")
