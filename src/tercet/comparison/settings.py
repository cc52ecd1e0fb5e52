"""Settings of `tercet compare`. Imports nothing heavy, so that `--help` is fast."""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Annotated, Any, Literal, get_type_hints

import tyro

from tercet.names import coerce, flag, parse_overrides, suggest
from tercet.training.settings import NamedValues, Names

DEFAULT_OBJECTIVES = ("triplet", "triplet-sh", "nt-xent", "smooth-ap", "con/sig", "nca/con", "cir/lin", "cir/sig-ms")
LOOKS = (5, 7, 10)  # numbers of seeds at which --until-decided tests after the first
COMMAND_LINE_ONLY = ("from_files",)  # in Python: tercet.significance
WITH_FROM = ("from_files", "metric", "baseline", "rope", "runs")


@dataclass(frozen=True)
class CompareSettings:
    """Train several objectives on one dataset and test which differences are significant.

    Every objective is trained with the same seeds and the same number of steps; differences are tested over seeds and
    images. Writes tables, figures and an HTML report. Without arguments it compares eight objectives on generated
    scenes in a few minutes. Finished runs are reused, interrupted ones resume.
    """

    data: tyro.conf.Positional[str] = "scenes"
    """A file or folder that `tercet data inspect` opens; or generated scenes (scenes:500 for 500 training images)."""
    objectives: Names = DEFAULT_OBJECTIVES
    """Objective names, or all; a custom objective as path/to/mine.py:function. Settings of the objective (the keyword
    parameters of a function) or of training can follow: nt-xent:temperature=0.05, mine.py:f:margin=0.1,epochs=3."""
    grid: Literal["goal", "aoq", "aoq-batch", "aoq-penalties", "aoq-draws"] | None = None
    """Predefined set of objectives, replaces --objectives. goal: the fifteen cells of GOAL, with its table. AOQ studies
    (need --mined): aoq (triplet-sh, off-tri, off-quin, aoq), aoq-batch (a larger batch instead of mined negatives),
    aoq-penalties (alpha and beta), aoq-draws (uniform, normal, by similarity)."""
    mined: str | None = None
    """Table of hard negatives from `tercet mine`, used by off-tri, off-quin and aoq."""
    models: Names = ("heads",)
    """Models or published recipes; every objective is trained with each."""
    sweep: NamedValues = field(default_factory=dict)
    """Training settings to sweep, as a full grid over all values: batch_size=64,128."""
    seeds: int = 3
    """Number of seeds, 0 to N-1, the same for every objective."""
    until_decided: bool = False
    """More seeds until it is decided which objective is best, or which differ from --baseline: tests at --seeds, 5, 7
    and 10 seeds, each with an equal share of the error rate."""
    tune: Literal["lr", "full"] = "lr"
    """What is tuned for each objective before the reported runs, on validation, with the same budget for all and seeds
    that are not reported. lr: the learning rate; full: also the objective's own constant (temperature, tau or margin)
    and the number of epochs."""
    no_tune: tyro.conf.FlagCreatePairsOff[bool] = False
    """Train all objectives with the same, untuned learning rate."""
    tune_factors: Annotated[tuple[float, ...], tyro.conf.arg(metavar="FACTOR ...")] = (0.3, 1.0, 3.0)
    """Multiples of the learning rate that tuning starts from; it tries others beyond an end that wins."""
    metric: str = "rsum"
    """Metric that is tested and sorts the table: rsum, or a recall such as t2i_r1."""
    baseline: str | None = None
    """Test the differences to this objective only, named as in the table: fewer tests need less correction."""
    rope: Annotated[float | None, tyro.conf.arg(metavar="POINTS")] = None
    """Equivalence margin: objectives whose difference is surely smaller count as equivalent."""
    from_files: Annotated[tuple[Path, ...], tyro.conf.arg(name="from", metavar="FILE ...")] = ()
    """Compare per-image results instead of training: .npz files with an array (seed, image) for each objective, .npz
    files of ranks, a .csv file (objective, seed, image, value), or run folders. See docs/comparing.md."""
    protocols: Names = ()
    """Evaluation protocols, one table each: coco-1k, coco-5k, flickr-1k, ... Without any: the test split as it is."""

    epochs: int | None = None
    """Passes over the training captions; smooth-ap, which sees several captions per image, takes the same number of
    steps instead. None: those of the recipe, or 6 on scenes."""
    model_settings: NamedValues = field(default_factory=dict)
    """Settings of the model, such as embed_dim=512."""
    train: NamedValues = field(default_factory=dict)
    """Other settings of `tercet train`, for all runs: batch_size=64 learning_rate=3e-4."""
    ignore_equal_text: bool = False
    """Do not use a caption as a negative of an image that has a caption with the same text."""

    image_encoder: str | None = None
    """Frozen encoder to extract image features with, once: efficientnet-lite2, or a Hugging Face model."""
    text_encoder: str | None = None
    """The same for captions: minilm, bag-of-words, or a Hugging Face model."""
    features: str | None = None
    """Which features to use: {split}_{features}.npy of a precomp folder (default ims), or regions for scenes."""
    images: Path | None = None
    """Folder of image files, if it is not found next to the dataset."""
    skip_bad: bool = False
    """Skip and list invalid captions, images and features instead of stopping at the first."""
    image_column: str | None = None
    """Column of the images in a CSV, TSV or Parquet file. None: image, filepath, filename or another usual name."""
    caption_column: str | None = None
    """Column of the captions. None: caption, text, title or another usual name."""
    split_column: str | None = None
    """Column of the splits. None: split, if there is one."""

    processes: int | None = None
    """Number of processes that train in parallel. None: number of cores."""
    no_stack: tyro.conf.FlagCreatePairsOff[bool] = False
    """Train one run at a time in a process. By default runs whose heads have equal shapes are trained together, with
    the same results up to rounding."""
    executor: str = "local"
    """How the runs are carried out: local processes, or an executor of an installed package (`tercet list executors`).
    """
    runs: Path = Path("runs")
    """Folder for run folders, tables and the report."""

    def __post_init__(self) -> None:
        for name in ("seeds", "epochs", "processes"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ValueError(f"--{name} must be a whole number of at least 1, got {value!r}")
        if not self.objectives or not self.models:
            raise ValueError(f"--{'models' if self.objectives else 'objectives'} needs at least one name")
        if self.until_decided and self.seeds < 2:
            raise ValueError(f"--until-decided needs --seeds of at least 2, got {self.seeds}")
        if self.until_decided and self.seeds >= LOOKS[-1]:
            raise ValueError(f"--until-decided trains up to {LOOKS[-1]} seeds; --seeds must be below, got {self.seeds}")
        if self.no_tune and self.tune != CompareSettings.tune:
            raise ValueError(f"--no-tune and --tune {self.tune} contradict each other: give one of them")
        if self.rope is not None and not 0 < self.rope < float("inf"):
            raise ValueError(f"--rope must be a number of points above 0, got {self.rope}")
        self._check_from()
        if not self.tune_factors or not all(0 < factor < float("inf") for factor in self.tune_factors):
            raise ValueError(f"--tune-factors must be finite and above 0, got {self.tune_factors}")
        if len(set(self.tune_factors)) < len(self.tune_factors):
            raise ValueError(f"--tune-factors has duplicates: {self.tune_factors}")

    def _check_from(self) -> None:
        """With --from nothing is trained, so that no other setting has an effect."""
        if not self.from_files:
            return
        defaults = CompareSettings()
        for item in fields(self):
            if item.name not in WITH_FROM and getattr(self, item.name) != getattr(defaults, item.name):
                raise ValueError(f"{flag(item.name)} has no effect with --from, which trains nothing")

    @property
    def looks(self) -> tuple[int, ...]:
        """Numbers of seeds at which is tested: one, or with --until-decided several."""
        return (self.seeds, *(seeds for seeds in LOOKS if self.until_decided and seeds > self.seeds))

    def sweep_values(self) -> dict[str, tuple[Any, ...]]:
        """Setting -> its values: `64,128` is two."""
        return {name: _split_values(value) for name, value in self.sweep.items()}


def make_settings(overrides: Mapping[str, Any]) -> CompareSettings:
    """Settings from keyword arguments; accepts a single name where several are allowed, and strings as paths."""
    names = [item.name for item in fields(CompareSettings) if item.name not in COMMAND_LINE_ONLY]
    for name in overrides:
        if name not in names:
            hint = suggest(name, names)
            raise ValueError(f"compare has no setting {name!r}{hint}; it has: {', '.join(names)}")
    types = get_type_hints(CompareSettings)
    values = {}
    for name, value in overrides.items():
        single = name in ("objectives", "models", "protocols") and isinstance(value, str)
        values[name] = coerce(name, (value,) if single else value, types[name])
    return CompareSettings(**values)


def _split_values(value: Any) -> tuple[Any, ...]:
    """`64,128` -> (64, 128); each value is parsed as JSON if possible."""
    if isinstance(value, (list, tuple)):
        return tuple(value)
    return (
        tuple(parse_overrides([f"value={text}"])["value"] for text in str(value).split(","))
        if isinstance(value, str)
        else (value,)
    )
