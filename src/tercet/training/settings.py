"""Settings of `tercet train`, `tercet evaluate` and `tercet mine`. The docstrings of the fields are the `--help` texts.

Imports nothing heavy: `--help` must be fast.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Annotated, Any, Literal, get_type_hints

import tyro

from tercet.names import coerce, flag, parse_overrides, split_settings, suggest
from tercet.plugins import check_trusted, installed, is_file_name, trust
from tercet.recipes import TRAINING, recipe_of

NamedValues = Annotated[
    dict[str, Any],
    tyro.constructors.PrimitiveConstructorSpec(
        nargs="*",
        metavar="NAME=VALUE ...",
        instance_from_str=parse_overrides,
        is_instance=lambda instance: isinstance(instance, dict),
        str_from_instance=lambda instance: [f"{name}={json.dumps(value)}" for name, value in instance.items()],
    ),
]
Names = Annotated[tuple[str, ...], tyro.conf.arg(metavar="NAME ...")]


@dataclass(frozen=True)
class TrainSettings:
    """Train a retrieval model with one objective; the weights with the best validation metric are saved.

    Each run has its own folder, named by a hash of its settings and data; a finished run is never trained again. An
    interrupted run (Ctrl-C, kill -9, power cut) resumes from its last checkpoint when the command is run again, and
    ends with bit-identical weights.
    """

    data: tyro.conf.Positional[str] = "scenes"
    """Dataset: a file or folder in any format that `tercet data inspect` reads, or scenes, the generated dataset
    (scenes:500 for 500 training images)."""
    model: str = "heads"
    """A system (heads, vsepp, vsrn, vse-infinity, scan, bfan, xvlm, clip), a recipe (vsepp-f30k, scan-t2i-coco, ...),
    or the folder or hub name of a CLIP or SigLIP. A recipe changes the defaults of the other settings: see `--model
    NAME --help`."""
    objective: str = "triplet-sh"
    """Training objective by name, a sum as "nt-xent + 0.1*cir/sig-ms", or your own as path/to/file.py:function.
    Settings may follow a name, for a function its keyword parameters: nt-xent:temperature=0.05, mine.py:f:margin=0.3.
    learn=temperature trains a setting with the model."""
    seed: int = 0
    """Random seed of initial weights, batch order and augmentation. Equal settings and seed give equal weights."""

    model_settings: NamedValues = field(default_factory=dict)
    """Model settings, for example embed_dim=512."""
    objective_settings: NamedValues = field(default_factory=dict)
    """Objective settings, for example temperature=0.05."""
    init_from: str | None = None
    """Run folder or saved model to initialize the weights from, for example the first stage of VSE++."""

    features: str | None = None
    """Image features to use: NAME of {split}_NAME.npy in a precomp folder (default: ims), or regions for scenes."""
    images: Path | None = None
    """Folder of the image files, if it is not next to the dataset."""
    skip_bad: bool = False
    """Skip and list invalid captions, images and features instead of stopping at the first."""
    image_column: str | None = None
    """Column of the images in a CSV, TSV or Parquet file. None: image, filepath, filename or another usual name."""
    caption_column: str | None = None
    """Column of the captions. None: caption, text, title or another usual name."""
    split_column: str | None = None
    """Column of the splits. None: split, if there is one."""
    train_split: str = "train"
    """Training split; + joins splits: train+restval is common for COCO."""
    validation_split: str = "val"
    """Split that selects the best epoch. If the dataset has none, the weights of the last epoch are saved."""
    test_split: str = "test"
    """Split evaluated once, after training, with the selected weights."""

    epochs: int = 12
    """Number of epochs. One epoch is one pass over the training captions (with --captions-per-image: images)."""
    epoch_steps: int | None = None
    """Steps per epoch, over as many passes as needed: gives runs with different batches equal step counts. None: one
    pass per epoch."""
    batch_size: int = 128
    """Image-caption pairs per batch; with --captions-per-image, images per batch."""
    captions_per_image: int | None = None
    """Captions per image in a batch, for objectives that rank several positives. None: batches of single pairs."""
    positives: Literal["ids", "diagonal"] = "ids"
    """Which pairs of a batch are positives. ids: all captions of an image. diagonal: only row i with column i, so that
    an image drawn twice is a negative of its own other caption, as in the published code."""
    grades: str | None = None
    """Weights of pairs, for objectives that take weights of positives: a text file with an image index, a caption index
    and a weight from 0 to 1 per line, counted from 0 in the training split, or the folder with the human judgments of
    Flickr8k. Pairs that it does not name keep the weight 1 or 0."""
    ignore_equal_text: bool = False
    """Ignore a pair (neither positive nor negative) if the caption has the same text as a caption of the image."""
    drop_regions: float = 0.0
    """Size augmentation: fraction of an image's regions to drop during training."""
    drop_words: float = 0.0
    """Size augmentation: fraction of a caption's words to mask, replace or drop during training."""
    crop: Literal["none", "area", "half", "sides"] = "none"
    """Random crop with horizontal flip, for models that read pixels. area: 8-100 % of the area (VSE++); half: 50-100 %
    of the area (X-VLM); sides: 60-100 % of each side (VSE-infinity)."""

    image_size: int = 224
    """Side of the square input image in pixels, for models that read pixels."""
    squash: bool = False
    """Resize the whole image to a square, ignoring its aspect ratio, instead of a center crop."""

    warmup_objective: str | None = None
    """Objective of the first epochs, for example triplet (all negatives) if the hardest negatives cause collapse."""
    warmup_objective_epochs: int = 1
    """Number of epochs with --warmup-objective."""
    caption_weight: float = 0.0
    """Weight of the captioning loss (VSRN with captioner=true)."""
    itm_weight: float = 0.0
    """Weight of the image-text matching loss with hard negatives (X-VLM)."""
    objective_weight: float = 1.0
    """Weight of the objective relative to the captioning or matching loss."""

    round: Literal[1, 2] = 1
    """2: second round of AOQ with mined negatives; uses the recipe's second-round defaults and needs --mined. Starts
    from random weights, as in the released code, or from --init-from."""
    mined: str | None = None
    """Hard negatives of the training split: a folder written by `tercet mine`, or the AOQ authors' lists. Used by
    off-tri, off-quin and aoq, or by any objective with --mined-as-candidates."""
    mined_top: int = 300
    """Draw mined negatives from the top N captions of an image's list, and from a proportional part of a caption's
    list of images."""
    mined_draw: Literal["uniform", "normal", "similarity"] = "uniform"
    """Sampling distribution over the list: uniform, Gaussian around the middle, or softmax of similarity."""
    queue_size: int | None = None
    """Keep the last N image and caption embeddings as further negatives without a gradient, for dual encoders. Those
    with the id of a query are ignored. None: off."""
    queue_momentum: float | None = None
    """Fill the queue with embeddings of a moving average of the weights, updated as momentum * average + (1 - momentum)
    * weights after every step. None: with those of the model itself."""

    mined_as_candidates: bool = False
    """Append mined images and captions to the batch as additional negatives; works with any other objective of a dual
    encoder."""
    mine_every: int | None = None
    """Mine the training split again with the current weights every N epochs. None: never."""

    optimizer: Literal["adamw", "adam"] = "adamw"
    """adamw: decoupled weight decay; adam: weight decay is added to the gradient (L2 penalty)."""
    learning_rate: float = 1e-3
    """Peak learning rate. The default is the same for every objective and was not tuned on any result."""
    weight_decay: float = 0.01
    """Weight decay."""
    decay_norm_and_bias: bool = True
    """Also decay biases and norm gains."""
    adam_beta2: float = 0.999
    """Adam beta2."""
    lr_multipliers: NamedValues = field(default_factory=dict)
    """Learning-rate multipliers by parameter name prefix, for example backbone=0.01."""
    schedule: Literal["cosine", "linear", "steps", "constant"] = "cosine"
    """Learning-rate schedule after warmup. cosine, linear: decay to 0; steps: multiply by --decay at --decay-epochs."""
    warmup_epochs: float = 1.0
    """Linear learning-rate warmup, in epochs."""
    decay_epochs: Annotated[tuple[int, ...], tyro.conf.arg(metavar="EPOCH ...")] = ()
    """Epochs, counted from 0, at whose start --schedule steps multiplies the learning rate by --decay."""
    decay: float = 0.1
    """Learning-rate factor of --schedule steps."""
    grad_clip: float | None = 2.0
    """Gradient clipping: maximum norm over all parameters. None: no clipping."""
    grad_accum_steps: int = 1
    """Batches per optimizer step; gradients are averaged. Negatives come from the same batch only: see --grad-cache."""
    frozen: Names = ()
    """Parameters not to train, by name prefix."""
    lora: int | None = None
    """LoRA: train updates of rank N of the linear layers of Hugging Face towers (CLIP, SigLIP, BERT, ViT, ...) and what
    is outside of them. Saved weights are merged. Usual learning rates are about ten times higher. None: off."""
    unfreeze_epoch: int = 0
    """Keep the backbone frozen before this epoch."""
    ramp_epoch: int | None = None
    """Epoch in which gradients are scaled linearly from 0 to 1: the backbone warmup of VSE-infinity. None: never."""

    grad_cache: int | None = None
    """GradCache: encode N items at a time with the exact gradient of the whole batch, for batches that do not fit into
    memory. None: off."""
    precision: Literal["float32", "bf16", "fp16", "float64"] = "float32"
    """bf16, fp16: encoders run in mixed precision, similarities and their gradients stay in float32. fp16 scales the
    gradient, and leaves out the steps in which it overflows."""
    compile: bool = False
    """Compile the encoders with torch.compile. Results differ in the last digits."""

    select_metric: str = "rsum"
    """Validation metric that selects the best epoch; + adds metrics: i2t_r1+t2i_r1."""
    patience: int | None = None
    """Early stopping: end after N validations without improvement. Not in comparisons, whose runs make equal numbers of
    steps. None: train all epochs."""
    cocos_every: int = 20
    """Log contributing-sample counts every N steps; 0 disables."""

    config: Path | None = None
    """JSON or YAML file of settings, for example the settings.json of a run. Command-line flags override it."""
    runs: Path = Path("runs")
    """Folder that holds the run folders."""
    resume: bool = True
    """Resume an unfinished run with the same settings; --no-resume discards it and starts over."""
    checkpoint_every: int = 200
    """Steps between checkpoints. One is also written after every epoch."""
    trust: tuple[Path, ...] = ()
    """Python files that may be run although only --config or --init-from names them."""
    workers: int | None = None
    """Threads that prefetch batches; 0: no prefetching. None: two for models that decode images, none for others."""
    device: str | None = None
    """cpu, cuda, cuda:1, ... None: cuda if available, else cpu."""
    report_to: Annotated[tuple[Literal["tensorboard", "wandb"], ...], tyro.conf.arg(metavar="TOOL ...")] = ()
    """Also write the content of metrics.jsonl for these tools, to the run folder. wandb is offline unless WANDB_MODE
    says otherwise: `wandb sync` uploads it."""

    def __post_init__(self) -> None:
        name, settings = split_settings(self.objective)
        if settings:  # written after the name
            object.__setattr__(self, "objective", name)
            object.__setattr__(self, "objective_settings", _joined(self.objective_settings, settings))
        _check(self)


# How a run is executed, not what it computes: two runs that differ only in these are the same run.
EXECUTION_SETTINGS = ("config", "trust", "runs", "resume", "checkpoint_every", "workers", "device", "report_to")
NEEDS_MINED = ("mined_as_candidates", "mine_every", "round", "mined_top", "mined_draw")
LOSS_WEIGHTS = ("caption_weight", "itm_weight", "objective_weight")
SETTING_NAMES = [item.name for item in fields(TrainSettings)]
MIN_VALUES = {
    "epochs": 1,
    "batch_size": 2,
    "grad_accum_steps": 1,
    "checkpoint_every": 1,
    "workers": 0,
    "cocos_every": 0,
    "captions_per_image": 1,
    "epoch_steps": 1,
    "grad_cache": 1,
    "image_size": 1,
    "seed": 0,
    "unfreeze_epoch": 0,
    "ramp_epoch": 0,
    "mined_top": 1,
    "mine_every": 1,
    "queue_size": 1,
    "lora": 1,
    "patience": 1,
}
CODE_SETTINGS = {"model": "model_source", "objective": "objective_source", "warmup_objective": "warmup_source"}
"""Settings that may name a Python file -> the key with its checksum in a run's settings.json."""
DERIVED_KEYS = (
    "objective_source",
    "objective_code",
    "warmup_source",
    "model_source",
    "init_checksum",
    "mined_checksum",
    "grades_checksum",
    "mined_again",
    "learned_scale",
    "pretrained",
)  # keys of a run's settings.json that are not settings


def train_settings(given: dict[str, Any]) -> TrainSettings:
    """Resolve settings, later ones win: defaults, the model's recipe, the file `config`, `given`."""
    if given.get("config") is not None:
        file = Path(given["config"])
        saved = read_config(file)
        trust(given.get("trust", ()))
        check_code(saved, file, but=given)
        given = {name: value for name, value in saved.items() if name not in DERIVED_KEYS} | given
    model = given.get("model", "heads")
    return make_settings(_training_values(model, given.get("round", 1)) if isinstance(model, str) else {}, given)


def make_settings(recipe: Mapping[str, Any], given: Mapping[str, Any]) -> TrainSettings:
    """Resolve settings, later ones win: defaults, `recipe`, `given`."""
    for name in given:
        if name not in SETTING_NAMES:
            hint = suggest(name, SETTING_NAMES)
            raise ValueError(f"train has no setting {name!r}{hint}; it has: {', '.join(SETTING_NAMES)}")
    # The recipe's objective_settings belong to its objective: `objective_for` applies them.
    values = {name: value for name, value in recipe.items() if name != "objective_settings"} | dict(given)
    if values.get("schedule", "steps") != "steps" and "decay_epochs" not in given:
        values.pop("decay_epochs", None)  # they belong to the recipe's own schedule
    types = get_type_hints(TrainSettings)
    return replace(TrainSettings(), **{name: coerce(name, value, types[name]) for name, value in values.items()})


def _training_values(model: str, training_round: int) -> dict[str, Any]:
    if is_file_name(model) or (model not in TRAINING[1] and model in installed("tercet.models")):
        from tercet.models import training_defaults  # imports torch: only for models from outside

        return training_defaults(model)
    recipe = recipe_of(model)
    return {} if recipe is None else TRAINING[2 if training_round == 2 else 1][recipe]


def defaults_for(arguments: Sequence[str]) -> TrainSettings:
    """Return the defaults under a command line's --model and --config, so that --help shows the recipe's values."""
    given: dict[str, Any] = {name: _value(arguments, f"--{name}") for name in ("model", "config", "schedule", "mined")}
    if {"-h", "--help"} & set(arguments) and is_file_name(given["model"] or ""):
        del given["model"]  # help imports nothing
    if _value(arguments, "--round") == "2" and not {"-h", "--help"} & set(arguments):
        given["round"] = 2  # raises here if neither the command line nor --config names a table
    return train_settings({name: value for name, value in given.items() if value is not None})


def read_config(file: Path) -> dict[str, Any]:
    """Read settings from JSON or YAML, for example the settings.json of a run."""
    try:
        text = file.read_text(encoding="utf-8")
        if file.suffix in (".yaml", ".yml"):
            import yaml  # type: ignore[import-untyped]

            content = yaml.safe_load(text)
        else:
            content = json.loads(text)
    except ImportError as error:
        raise ValueError(f"{file}: reading YAML needs a package: pip install pyyaml; JSON needs none") from error
    except (OSError, ValueError) as error:
        raise ValueError(f"{file}: cannot be read: {error}") from error
    except Exception as error:  # PyYAML's own exceptions: the file is invalid
        raise ValueError(f"{file}: not valid YAML: {error}") from error
    if not isinstance(content, dict):
        raise ValueError(f"{file}: expected a mapping of setting names to values, got {type(content).__name__}")
    if content.get("learned_scale"):  # the temperature of 1 next to a learned scale was not given by the user
        content["objective_settings"] = {
            name: value for name, value in content["objective_settings"].items() if name not in ("temperature", "bias")
        }
    return {name: value for name, value in content.items() if name != "config"}  # a config names no other config


def check_code(saved: dict[str, Any], named_by: Path, but: Mapping[str, Any] | None = None) -> None:
    """Refuse to import a Python file that only these saved settings name, before anything imports it."""
    for name, source in CODE_SETTINGS.items():
        value = saved.get(name)
        if isinstance(value, str) and is_file_name(value) and name not in (but or {}):
            file_name, settings = split_settings(value)
            trusted = check_trusted(file_name, saved.get(source), named_by)
            saved[name] = trusted + value.removeprefix(file_name) if settings else trusted


def identity_of(settings: TrainSettings) -> dict[str, Any]:
    """Return the settings that define the run, without those of its execution, ready for JSON."""
    return {name: value for name, value in asdict(settings).items() if name not in EXECUTION_SETTINGS} | {
        "images": None if settings.images is None else str(settings.images)
    }


def _joined(settings: dict[str, Any], after_name: dict[str, Any]) -> dict[str, Any]:
    """Settings of the objective from both places; `ValueError` if they differ."""
    for name, value in after_name.items():
        if settings.get(name, value) != value:
            raise ValueError(f"--objective and --objective-settings differ: {name} is {value!r} and {settings[name]!r}")
    return settings | after_name


def _value(arguments: Sequence[str], flag: str) -> str | None:
    for position, argument in enumerate(arguments):
        if argument == flag and position + 1 < len(arguments):
            return arguments[position + 1]
        if argument.startswith(f"{flag}="):
            return argument.removeprefix(f"{flag}=")
    return None


def _check(settings: TrainSettings) -> None:
    for name, minimum in MIN_VALUES.items():
        value = getattr(settings, name)
        if value is not None and value < minimum:
            raise ValueError(f"{flag(name)} must be a whole number of at least {minimum}, got {value!r}")
    for name in ("learning_rate", "weight_decay", "warmup_epochs", *LOSS_WEIGHTS):
        if not 0 <= getattr(settings, name) < float("inf"):
            raise ValueError(f"{flag(name)} must be a number of at least 0, got {getattr(settings, name)!r}")
    _check_fractions(settings)
    if settings.grad_clip is not None and not settings.grad_clip > 0:
        raise ValueError(f"--grad-clip must be above 0, or None for no clipping, got {settings.grad_clip}")
    if not 0 <= settings.adam_beta2 < 1:
        raise ValueError(f"--adam-beta2 must be at least 0 and below 1, got {settings.adam_beta2}")
    if not 0 < settings.decay <= 1:
        raise ValueError(f"--decay must be above 0 and at most 1, got {settings.decay}")
    if settings.seed >= 2**63:
        raise ValueError(f"--seed must be below 2^63, got {settings.seed}")
    _check_pairs(settings)
    _check_combinations(settings)
    _check_mined(settings)


def _check_fractions(settings: TrainSettings) -> None:
    for prefix, factor in settings.lr_multipliers.items():
        if not isinstance(factor, (int, float)) or isinstance(factor, bool) or not 0 <= factor < float("inf"):
            raise ValueError(f"--lr-multipliers {prefix} must be a number of at least 0, got {factor!r}")
    for name in ("drop_regions", "drop_words"):
        if not 0 <= getattr(settings, name) < 1:
            raise ValueError(
                f"{flag(name)} must be a fraction of at least 0 and below 1, got {getattr(settings, name)!r}"
            )


def _check_mined(settings: TrainSettings) -> None:
    if settings.mined is None:
        for name in NEEDS_MINED:
            if getattr(settings, name) != TrainSettings.__dataclass_fields__[name].default:
                raise ValueError(f"{flag(name)} needs --mined, a folder written by `tercet mine`")
    if settings.mined_as_candidates:
        for name in ("caption_weight", "itm_weight"):
            if getattr(settings, name):
                raise ValueError(f"--mined-as-candidates cannot be combined with {flag(name)}: it needs paired rows")
        if settings.positives == "diagonal":
            raise ValueError("--mined-as-candidates needs --positives ids, got diagonal")


def _check_pairs(settings: TrainSettings) -> None:
    if settings.grades is not None and settings.positives == "diagonal":
        raise ValueError("--grades needs --positives ids, got diagonal")
    if settings.queue_momentum is not None:
        if settings.queue_size is None:
            raise ValueError("--queue-momentum needs --queue-size")
        if not 0 <= settings.queue_momentum < 1:
            raise ValueError(f"--queue-momentum must be at least 0 and below 1, got {settings.queue_momentum}")
    if settings.queue_size is not None:
        if settings.positives == "diagonal":
            raise ValueError(
                "--queue-size needs --positives ids, got diagonal: ids tell which entries belong to a query"
            )
        for name in ("grades", "ignore_equal_text"):
            if getattr(settings, name):
                raise ValueError(f"--queue-size cannot be combined with {flag(name)}: it is known within a batch only")


def _check_combinations(settings: TrainSettings) -> None:
    if settings.positives == "diagonal" and settings.captions_per_image is not None:
        raise ValueError("--positives diagonal cannot be combined with --captions-per-image")
    if settings.decay_epochs and settings.schedule != "steps":
        raise ValueError(f"--decay-epochs needs --schedule steps, got {settings.schedule}")
    if settings.schedule == "steps" and list(settings.decay_epochs) != sorted(set(settings.decay_epochs)):
        raise ValueError(f"--decay-epochs must be strictly ascending, got {settings.decay_epochs}")
    if settings.grad_cache is not None and (settings.caption_weight or settings.itm_weight):
        raise ValueError(
            "--grad-cache cannot be combined with --caption-weight or --itm-weight: it encodes images and captions "
            "separately"
        )
    if settings.lora is not None and (settings.unfreeze_epoch or settings.frozen):
        other = "--unfreeze-epoch" if settings.unfreeze_epoch else "--frozen"
        raise ValueError(f"--lora freezes the towers itself and cannot be combined with {other}")
    if settings.validation_split == settings.test_split:
        raise ValueError(
            f"--validation-split and --test-split must differ, got {settings.test_split} for both: weights are never "
            "selected on test"
        )
    if settings.warmup_objective is None and settings.warmup_objective_epochs != 1:
        raise ValueError("--warmup-objective-epochs needs --warmup-objective")
    if settings.decay != 0.1 and not (settings.schedule == "steps" and settings.decay_epochs):
        raise ValueError("--decay needs --schedule steps and --decay-epochs")
    if settings.warmup_objective is not None and settings.warmup_objective_epochs < 1:
        raise ValueError(
            f"--warmup-objective needs --warmup-objective-epochs of at least 1, got {settings.warmup_objective_epochs}"
        )


@dataclass(frozen=True)
class EvaluateSettings:
    """Evaluate trained models on a split: the rank of every positive and the metrics of a protocol.

    Several models form an ensemble: their similarities are averaged. Writes the metrics and everything they depend on
    as JSON, and the rank of every positive as ranks.npz.
    """

    models: tyro.conf.Positional[Annotated[tuple[Path, ...], tyro.conf.arg(metavar="RUN|MODEL ...")]]
    """Run folders or saved models; or a CLIP or SigLIP of Hugging Face, by folder or name, as it is."""
    data: str
    """Dataset: a file or folder in any format that `tercet data inspect` reads, or scenes."""
    protocol: Literal["flickr-1k", "coco-5k", "coco-1k", "eccv-caption", "cxc", "custom"] = "custom"
    """Evaluation protocol. custom accepts any split; the others check that the split is theirs."""
    split: str = "test"
    """Split to evaluate. The 5,000 test images of COCO are often called testall."""
    rerank: int | None = None
    """Re-rank the top K candidates of each query with X-VLM's matching head; published: 256 on COCO, 128 on Flickr30K.
    None: no re-ranking."""
    ties: Literal["against", "expected", "optimistic"] = "against"
    """Rank of a positive among negatives of equal similarity. against: last, so that a collapsed model scores 0;
    expected: mean over all orders; optimistic: first."""
    features: str | None = None
    """Image features to use: NAME of {split}_NAME.npy in a precomp folder (default: ims), or regions for scenes."""
    images: Path | None = None
    """Folder of the image files, if it is not next to the dataset."""
    skip_bad: bool = False
    """Skip and list invalid captions, images and features instead of stopping at the first."""
    image_column: str | None = None
    """Column of the images in a CSV, TSV or Parquet file. None: image, filepath, filename or another usual name."""
    caption_column: str | None = None
    """Column of the captions. None: caption, text, title or another usual name."""
    split_column: str | None = None
    """Column of the splits. None: split, if there is one."""
    explain_legacy: bool = False
    """Also print the numbers the original scripts would print, and how they differ."""
    out: Path = Path("evaluations")
    """Output folder."""
    trust: tuple[Path, ...] = ()
    """Python files that may be run although only a saved model or a run names them (`--model mine.py:Class`)."""


@dataclass(frozen=True)
class MineSettings:
    """Mine the hardest negatives of a whole training split with a trained model, for `tercet train --mined`.

    Writes the most similar captions of every image and the most similar images of every caption, without positives. An
    interrupted run resumes when the command is run again. Filters of false negatives are off by default, as published;
    mined.json counts what each filter removed.
    """

    model: tyro.conf.Positional[Path]
    """Run folder or saved model."""
    data: str | None = None
    """Dataset: a file or folder in any format that `tercet data inspect` reads, or scenes. None: the dataset that the
    run was trained on."""
    out: Path | None = None
    """Output folder. None: mined/<name of the model folder>."""
    split: str = "train"
    """Split to mine; + joins splits: train+restval is common for COCO."""
    features: str | None = None
    """Image features to use: NAME of {split}_NAME.npy in a precomp folder (default: ims), or regions for scenes."""
    images: Path | None = None
    """Folder of the image files, if it is not next to the dataset."""
    skip_bad: bool = False
    """Skip and list invalid captions, images and features instead of stopping at the first."""
    image_column: str | None = None
    """Column of the images in a CSV, TSV or Parquet file. None: image, filepath, filename or another usual name."""
    caption_column: str | None = None
    """Column of the captions. None: caption, text, title or another usual name."""
    split_column: str | None = None
    """Column of the splits. None: split, if there is one."""

    top_captions: int = 2000
    """Captions to keep per image."""
    top_images: int = 400
    """Images to keep per caption."""
    shortlist: Path | None = None
    """Mined folder of another model: re-rank its lists instead of comparing all pairs, which is slow with
    cross-attention."""

    filter_skip_top: int = 0
    """Skip the top N ranks of every list."""
    filter_near_duplicates: bool = False
    """Skip captions that share at least 80 % of their words with a caption of the image."""
    filter_known: bool = False
    """Skip pairs that the dataset marks as matching although they are not paired (scenes has such labels)."""
    filter_pairs: Path | None = None
    """Skip the pairs of a text file: image index and caption index within the split per line, counted from 0."""
    filter_margin: float | None = None
    """Skip candidates more similar than the anchor's most similar positive minus this margin. None: off."""

    trust: tuple[Path, ...] = ()
    """Python files that may be run although only a saved model or a run names them (`--model mine.py:Class`)."""
