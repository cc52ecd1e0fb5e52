"""`tercet.train`, `tercet.compare` and `tercet.fit`: commands as functions, every setting in the signature.

Written by tools/make_api.py from the settings of the commands: do not edit.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import wraps
from importlib import import_module
from inspect import Signature, signature
from pathlib import Path
from re import sub
from typing import TYPE_CHECKING, Any, Literal, ParamSpec, TypeVar

from tercet.data.formats.from_python import DataLike
from tercet.objectives.registry import ObjectiveLike

if TYPE_CHECKING:
    from tercet.comparison.compare import Comparison
    from tercet.fitting.run_fit import Fitted
    from tercet.training.trained import Trained

P = ParamSpec("P")
T = TypeVar("T")


def only_given(run: str) -> Callable[[Callable[P, T]], Callable[P, T]]:
    """Call `run`, module:name, with the arguments that the caller gave: others come from `config` or a recipe."""
    module, _, name = run.partition(":")

    def decorate(declared: Callable[P, T]) -> Callable[P, T]:
        @wraps(declared)
        def call(*args: P.args, **kwargs: P.kwargs) -> T:
            known = {name: value for name, value in kwargs.items() if name in shown.parameters}
            given = {**shown.bind(*args, **known).arguments, **kwargs}  # `run` suggests a name for an unknown one
            result: T = getattr(import_module(module), name)(given)
            return result

        plain = signature(declared)
        shown = _LongSignature(list(plain.parameters.values()), return_annotation=plain.return_annotation)
        call.__signature__ = shown  # type: ignore[attr-defined]
        return call

    return decorate


class _LongSignature(Signature):
    """One parameter per line in `help()`."""

    def __str__(self) -> str:
        first, *others = self.parameters.values()
        lines = ["(", f"    {first},", "    *,", *(f"    {parameter}," for parameter in others)]
        text = "\n".join([*lines, f") -> {self.return_annotation}"])
        return sub(r"(?:\w+\.)+(?=[A-Z])", "", text)  # types without their modules


@only_given("tercet.training.train:train_with")
def train(
    data: DataLike = "scenes",
    *,
    model: str = "heads",
    objective: ObjectiveLike = "triplet-sh",
    seed: int = 0,
    model_settings: Mapping[str, Any] = {},
    objective_settings: Mapping[str, Any] = {},
    init_from: str | None = None,
    features: str | None = None,
    images: str | Path | None = None,
    skip_bad: bool = False,
    image_column: str | None = None,
    caption_column: str | None = None,
    split_column: str | None = None,
    train_split: str = "train",
    validation_split: str = "val",
    test_split: str = "test",
    epochs: int = 12,
    epoch_steps: int | None = None,
    batch_size: int = 128,
    captions_per_image: int | None = None,
    positives: Literal["ids", "diagonal"] = "ids",
    grades: str | None = None,
    ignore_equal_text: bool = False,
    drop_regions: float = 0.0,
    drop_words: float = 0.0,
    crop: Literal["none", "area", "half", "sides"] = "none",
    image_size: int = 224,
    squash: bool = False,
    warmup_objective: ObjectiveLike | None = None,
    warmup_objective_epochs: int = 1,
    caption_weight: float = 0.0,
    itm_weight: float = 0.0,
    objective_weight: float = 1.0,
    round: Literal[1, 2] = 1,
    mined: str | None = None,
    mined_top: int = 300,
    mined_draw: Literal["uniform", "normal", "similarity"] = "uniform",
    queue_size: int | None = None,
    queue_momentum: float | None = None,
    mined_as_candidates: bool = False,
    mine_every: int | None = None,
    optimizer: Literal["adamw", "adam"] = "adamw",
    learning_rate: float = 0.001,
    weight_decay: float = 0.01,
    decay_norm_and_bias: bool = True,
    adam_beta2: float = 0.999,
    lr_multipliers: Mapping[str, Any] = {},
    schedule: Literal["cosine", "linear", "steps", "constant"] = "cosine",
    warmup_epochs: float = 1.0,
    decay_epochs: Sequence[int] = (),
    decay: float = 0.1,
    grad_clip: float | None = 2.0,
    grad_accum_steps: int = 1,
    frozen: Sequence[str] = (),
    lora: int | None = None,
    unfreeze_epoch: int = 0,
    ramp_epoch: int | None = None,
    grad_cache: int | None = None,
    precision: Literal["float32", "bf16", "fp16", "float64"] = "float32",
    compile: bool = False,
    select_metric: str = "rsum",
    patience: int | None = None,
    cocos_every: int = 20,
    config: str | Path | None = None,
    runs: str | Path = "runs",
    resume: bool = True,
    checkpoint_every: int = 200,
    trust: Sequence[str | Path] = (),
    workers: int | None = None,
    device: str | None = None,
    report_to: Sequence[Literal["tensorboard", "wandb"]] = (),
) -> "Trained":
    """Train a retrieval model with one objective; the weights with the best validation metric are saved.

    `tercet train` as a function; returns the finished run. A setting that is not given has the value of the file
    `config`, else that of the recipe of `model`, else the default shown here.

    Args:
        data (DataLike, default "scenes"): A path, scenes, an opened dataset, a DataFrame, a Hugging Face dataset or
            (image, caption) pairs.
        model (str, default "heads"): A system (heads, vsepp, vsrn, vse-infinity, scan, bfan, xvlm, clip), a recipe
            (vsepp-f30k, scan-t2i-coco, ...), or the folder or hub name of a CLIP or SigLIP.
        objective (ObjectiveLike, default "triplet-sh"): Objective by name, as file.py:function, or a function, a class
            or an object of `tercet.objectives`.
        seed (int, default 0): Random seed of initial weights, batch order and augmentation.
        model_settings (Mapping[str, Any], default {}): Model settings, for example {"embed_dim": 512}.
        objective_settings (Mapping[str, Any], default {}): Objective settings, for example {"temperature": 0.05}.
        init_from (str | None, default None): Run folder or saved model to initialize the weights from, for example the
            first stage of VSE++.
        features (str | None, default None): Image features to use: NAME of {split}_NAME.npy in a precomp folder
            (default: ims), or regions for scenes.
        images (str | Path | None, default None): Folder of the image files, if it is not next to the dataset.
        skip_bad (bool, default False): Skip and list invalid captions, images and features instead of stopping at the
            first.
        image_column (str | None, default None): Column of the images in a CSV, TSV or Parquet file. None: image,
            filepath, filename or another usual name.
        caption_column (str | None, default None): Column of the captions. None: caption, text, title or another usual
            name.
        split_column (str | None, default None): Column of the splits. None: split, if there is one.
        train_split (str, default "train"): Training split; + joins splits: train+restval is common for COCO.
        validation_split (str, default "val"): Split that selects the best epoch.
        test_split (str, default "test"): Split evaluated once, after training, with the selected weights.
        epochs (int, default 12): Number of epochs.
        epoch_steps (int | None, default None): Steps per epoch, over as many passes as needed: gives runs with
            different batches equal step counts. None: one pass per epoch.
        batch_size (int, default 128): Image-caption pairs per batch; with captions_per_image, images per batch.
        captions_per_image (int | None, default None): Captions per image in a batch, for objectives that rank several
            positives. None: batches of single pairs.
        positives (ids | diagonal, default "ids"): Which pairs of a batch are positives. ids: all captions of an image.
            diagonal: only row i with column i, so that an image drawn twice is a negative of its own other caption, as
            in the published code.
        grades (str | None, default None): Weights of pairs, for objectives that take weights of positives: a text file
            with an image index, a caption index and a weight from 0 to 1 per line, counted from 0 in the training
            split, or the folder with the human judgments of Flickr8k.
        ignore_equal_text (bool, default False): Ignore a pair (neither positive nor negative) if the caption has the
            same text as a caption of the image.
        drop_regions (float, default 0.0): Size augmentation: fraction of an image's regions to drop during training.
        drop_words (float, default 0.0): Size augmentation: fraction of a caption's words to mask, replace or drop
            during training.
        crop (none | area | half | sides, default "none"): Random crop with horizontal flip, for models that read
            pixels. area: 8-100 % of the area (VSE++); half: 50-100 % of the area (X-VLM); sides: 60-100 % of each side
            (VSE-infinity).
        image_size (int, default 224): Side of the square input image in pixels, for models that read pixels.
        squash (bool, default False): Resize the whole image to a square, ignoring its aspect ratio, instead of a center
            crop.
        warmup_objective (ObjectiveLike | None, default None): Objective of the first epochs, for example triplet (all
            negatives) if the hardest negatives cause collapse.
        warmup_objective_epochs (int, default 1): Number of epochs with warmup_objective.
        caption_weight (float, default 0.0): Weight of the captioning loss (VSRN with captioner=true).
        itm_weight (float, default 0.0): Weight of the image-text matching loss with hard negatives (X-VLM).
        objective_weight (float, default 1.0): Weight of the objective relative to the captioning or matching loss.
        round (1 | 2, default 1): 2: second round of AOQ with mined negatives; uses the recipe's second-round defaults
            and needs mined.
        mined (str | None, default None): Hard negatives of the training split: a folder written by `tercet mine`, or
            the AOQ authors' lists.
        mined_top (int, default 300): Draw mined negatives from the top N captions of an image's list, and from a
            proportional part of a caption's list of images.
        mined_draw (uniform | normal | similarity, default "uniform"): Sampling distribution over the list: uniform,
            Gaussian around the middle, or softmax of similarity.
        queue_size (int | None, default None): Keep the last N image and caption embeddings as further negatives without
            a gradient, for dual encoders. None: off.
        queue_momentum (float | None, default None): Fill the queue with embeddings of a moving average of the weights,
            updated as momentum * average + (1 - momentum) * weights after every step. None: with those of the model
            itself.
        mined_as_candidates (bool, default False): Append mined images and captions to the batch as additional
            negatives; works with any other objective of a dual encoder.
        mine_every (int | None, default None): Mine the training split again with the current weights every N epochs.
            None: never.
        optimizer (adamw | adam, default "adamw"): adamw: decoupled weight decay; adam: weight decay is added to the
            gradient (L2 penalty).
        learning_rate (float, default 0.001): Peak learning rate.
        weight_decay (float, default 0.01): Weight decay.
        decay_norm_and_bias (bool, default True): Also decay biases and norm gains.
        adam_beta2 (float, default 0.999): Adam beta2.
        lr_multipliers (Mapping[str, Any], default {}): Learning-rate multipliers by parameter name prefix, for example
            {"backbone": 0.01}.
        schedule (cosine | linear | steps | constant, default "cosine"): Learning-rate schedule after warmup. cosine,
            linear: decay to 0; steps: multiply by decay at decay_epochs.
        warmup_epochs (float, default 1.0): Linear learning-rate warmup, in epochs.
        decay_epochs (Sequence[int], default ()): Epochs, counted from 0, at whose start schedule steps multiplies the
            learning rate by decay.
        decay (float, default 0.1): Learning-rate factor of schedule steps.
        grad_clip (float | None, default 2.0): Gradient clipping: maximum norm over all parameters. None: no clipping.
        grad_accum_steps (int, default 1): Batches per optimizer step; gradients are averaged.
        frozen (Sequence[str], default ()): Parameters not to train, by name prefix.
        lora (int | None, default None): LoRA: train updates of rank N of the linear layers of Hugging Face towers
            (CLIP, SigLIP, BERT, ViT, ...) and what is outside of them. None: off.
        unfreeze_epoch (int, default 0): Keep the backbone frozen before this epoch.
        ramp_epoch (int | None, default None): Epoch in which gradients are scaled linearly from 0 to 1: the backbone
            warmup of VSE-infinity. None: never.
        grad_cache (int | None, default None): GradCache: encode N items at a time with the exact gradient of the whole
            batch, for batches that do not fit into memory. None: off.
        precision (float32 | bf16 | fp16 | float64, default "float32"): bf16, fp16: encoders run in mixed precision,
            similarities and their gradients stay in float32. fp16 scales the gradient, and leaves out the steps in
            which it overflows.
        compile (bool, default False): Compile the encoders with torch.compile.
        select_metric (str, default "rsum"): Validation metric that selects the best epoch; + adds metrics:
            i2t_r1+t2i_r1.
        patience (int | None, default None): Early stopping: end after N validations without improvement. None: train
            all epochs.
        cocos_every (int, default 20): Log contributing-sample counts every N steps; 0 disables.
        config (str | Path | None, default None): JSON or YAML file of settings, for example the settings.json of a run.
        runs (str | Path, default "runs"): Folder that holds the run folders.
        resume (bool, default True): Resume an unfinished run with the same settings; resume=False discards it and
            starts over.
        checkpoint_every (int, default 200): Steps between checkpoints.
        trust (Sequence[str | Path], default ()): Python files that may be run although only config or init_from names
            them.
        workers (int | None, default None): Threads that prefetch batches; 0: no prefetching. None: two for models that
            decode images, none for others.
        device (str | None, default None): cpu, cuda, cuda:1, ... None: cuda if available, else cpu.
        report_to (Sequence[tensorboard | wandb], default ()): Also write the content of metrics.jsonl for these tools,
            to the run folder. wandb is offline unless WANDB_MODE says otherwise: `wandb sync` uploads it.
    """
    raise AssertionError("`only_given` calls another function in its place")


@only_given("tercet.comparison.compare:compare_with")
def compare(
    data: DataLike = "scenes",
    *,
    objectives: ObjectiveLike | Sequence[ObjectiveLike] = (
        "triplet",
        "triplet-sh",
        "nt-xent",
        "smooth-ap",
        "con/sig",
        "nca/con",
        "cir/lin",
        "cir/sig-ms",
    ),
    grid: Literal["goal", "aoq", "aoq-batch", "aoq-penalties", "aoq-draws"] | None = None,
    mined: str | None = None,
    models: str | Sequence[str] = ("heads",),
    sweep: Mapping[str, Any] = {},
    seeds: int = 3,
    until_decided: bool = False,
    tune: Literal["lr", "full"] = "lr",
    no_tune: bool = False,
    tune_factors: Sequence[float] = (0.3, 1.0, 3.0),
    metric: str = "rsum",
    baseline: str | None = None,
    rope: float | None = None,
    protocols: str | Sequence[str] = (),
    epochs: int | None = None,
    model_settings: Mapping[str, Any] = {},
    train: Mapping[str, Any] = {},
    ignore_equal_text: bool = False,
    image_encoder: str | None = None,
    text_encoder: str | None = None,
    features: str | None = None,
    images: str | Path | None = None,
    skip_bad: bool = False,
    image_column: str | None = None,
    caption_column: str | None = None,
    split_column: str | None = None,
    processes: int | None = None,
    no_stack: bool = False,
    executor: str = "local",
    runs: str | Path = "runs",
) -> "Comparison":
    """Train several objectives on one dataset and test which differences are significant.

    `tercet compare` as a function; returns tables, tests and a summary, and `.save()` writes the report.

    Args:
        data (DataLike, default "scenes"): A path, scenes, an opened dataset, a DataFrame, a Hugging Face dataset or
            (image, caption) pairs.
        objectives (ObjectiveLike | Sequence[ObjectiveLike], default ("triplet", "triplet-sh", "nt-xent", "smooth-ap",
            "con/sig", "nca/con", "cir/lin", "cir/sig-ms")): Objectives, each as in `tercet.train`, or all; settings may
            follow: nt-xent:temperature=0.05.
        grid (goal | aoq | aoq-batch | aoq-penalties | aoq-draws | None, default None): Predefined set of objectives,
            replaces objectives. goal: the fifteen cells of GOAL, with its table.
        mined (str | None, default None): Table of hard negatives from `tercet mine`, used by off-tri, off-quin and aoq.
        models (str | Sequence[str], default ("heads",)): Models or published recipes; every objective is trained with
            each.
        sweep (Mapping[str, Any], default {}): Training settings to sweep, as a full grid over all values:
            {"batch_size": [64, 128]}.
        seeds (int, default 3): Number of seeds, 0 to N-1, the same for every objective.
        until_decided (bool, default False): More seeds until it is decided which objective is best, or which differ
            from baseline: tests at seeds, 5, 7 and 10 seeds, each with an equal share of the error rate.
        tune (lr | full, default "lr"): What is tuned for each objective before the reported runs, on validation, with
            the same budget for all and seeds that are not reported. lr: the learning rate; full: also the objective's
            own constant (temperature, tau or margin) and the number of epochs.
        no_tune (bool, default False): Train all objectives with the same, untuned learning rate.
        tune_factors (Sequence[float], default (0.3, 1.0, 3.0)): Multiples of the learning rate that tuning starts from;
            it tries others beyond an end that wins.
        metric (str, default "rsum"): Metric that is tested and sorts the table: rsum, or a recall such as t2i_r1.
        baseline (str | None, default None): Test the differences to this objective only, named as in the table: fewer
            tests need less correction.
        rope (float | None, default None): Equivalence margin: objectives whose difference is surely smaller count as
            equivalent.
        protocols (str | Sequence[str], default ()): Evaluation protocols, one table each: coco-1k, coco-5k, flickr-1k,
            ... Without any: the test split as it is.
        epochs (int | None, default None): Passes over the training captions; smooth-ap, which sees several captions per
            image, takes the same number of steps instead. None: those of the recipe, or 6 on scenes.
        model_settings (Mapping[str, Any], default {}): Settings of the model, such as {"embed_dim": 512}.
        train (Mapping[str, Any], default {}): Other settings of `tercet.train`, for all runs: {"batch_size": 64,
            "learning_rate": 3e-4}.
        ignore_equal_text (bool, default False): Do not use a caption as a negative of an image that has a caption with
            the same text.
        image_encoder (str | None, default None): Frozen encoder to extract image features with, once:
            efficientnet-lite2, or a Hugging Face model.
        text_encoder (str | None, default None): The same for captions: minilm, bag-of-words, or a Hugging Face model.
        features (str | None, default None): Which features to use: {split}_{features}.npy of a precomp folder (default
            ims), or regions for scenes.
        images (str | Path | None, default None): Folder of image files, if it is not found next to the dataset.
        skip_bad (bool, default False): Skip and list invalid captions, images and features instead of stopping at the
            first.
        image_column (str | None, default None): Column of the images in a CSV, TSV or Parquet file. None: image,
            filepath, filename or another usual name.
        caption_column (str | None, default None): Column of the captions. None: caption, text, title or another usual
            name.
        split_column (str | None, default None): Column of the splits. None: split, if there is one.
        processes (int | None, default None): Number of processes that train in parallel. None: number of cores.
        no_stack (bool, default False): Train one run at a time in a process.
        executor (str, default "local"): How the runs are carried out: local processes, or an executor of an installed
            package (`tercet list executors`).
        runs (str | Path, default "runs"): Folder for run folders, tables and the report.
    """
    raise AssertionError("`only_given` calls another function in its place")


@only_given("tercet.fitting.run_fit:fit_with")
def fit(
    data: DataLike = "scenes",
    *,
    model: str | None = None,
    minutes: float = 10.0,
    objectives: ObjectiveLike | Sequence[ObjectiveLike] = ("nt-xent", "triplet-sh", "con/sig"),
    image_encoder: str = "efficientnet-lite2",
    text_encoder: str = "minilm",
    images: str | Path | None = None,
    skip_bad: bool = False,
    processes: int | None = None,
    runs: str | Path = "runs",
) -> "Fitted":
    """From data to a model and a search index: check, split, extract features or fine-tune, compare, evaluate, index.

    `tercet fit` as a function; returns the model, its metrics, the comparison and the index.

    Args:
        data (DataLike, default "scenes"): A path, scenes, an opened dataset, a DataFrame, a Hugging Face dataset or
            (image, caption) pairs.
        model (str | None, default None): Folder or hub name of a CLIP or SigLIP: fine-tuned if the budget allows, else
            with heads on its features. None: one in the local cache of the hub, or else the encoders below.
        minutes (float, default 10.0): Budget of time, for everything.
        objectives (ObjectiveLike | Sequence[ObjectiveLike], default ("nt-xent", "triplet-sh", "con/sig")): Objectives,
            each as in `tercet.train`, or all; settings may follow: nt-xent:temperature=0.05.
        image_encoder (str, default "efficientnet-lite2"): Frozen image encoder, without a CLIP or SigLIP.
        text_encoder (str, default "minilm"): Frozen text encoder, without a CLIP or SigLIP.
        images (str | Path | None, default None): Folder of image files, if it is not found next to the dataset.
        skip_bad (bool, default False): Leave out and list what cannot be read, instead of stopping.
        processes (int | None, default None): Number of processes that train in parallel. None: number of cores.
        runs (str | Path, default "runs"): Folder for the plan, run folders, tables, the report and the index.
    """
    raise AssertionError("`only_given` calls another function in its place")
