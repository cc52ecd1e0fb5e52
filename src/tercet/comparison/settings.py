"""What `tercet compare` can be told. Imports nothing heavy: `--help` must be quick."""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from difflib import get_close_matches
from pathlib import Path
from typing import Annotated, Any, Literal, get_type_hints

import tyro

from tercet.training.kinds import as_kept
from tercet.training.settings import NamedValues, Names, named_values

DEFAULT_OBJECTIVES = ("triplet", "triplet-sh", "nt-xent", "smooth-ap", "con/sig", "nca/con", "cir/lin", "cir/sig-ms")


@dataclass(frozen=True)
class CompareSettings:
    """Which objective wins on this data, by how much, and is it real?

    Trains every objective with the same seeds and the same number of steps, tests the differences over seeds and
    images, and leaves tables and a report. Alone, it compares eight objectives on generated scenes in a few minutes;
    with a data set, on yours. Finished runs are kept and never repeated: stop at any moment and call again.
    """

    data: tyro.conf.Positional[str] = "scenes"
    """A file or folder that `tercet data inspect` knows; or scenes, the generated world (scenes:500 for fewer)."""
    objectives: Names = DEFAULT_OBJECTIVES
    """Names of the catalogue, or all; your own as path/to/mine.py:function. Settings of the objective or of training
    may follow: nt-xent:temperature=0.05, triplet-sh:margin=0.1,learning_rate=3e-4."""
    grid: Literal["goal", "aoq", "aoq-batch", "aoq-penalties", "aoq-draws"] | None = None
    """In place of --objectives. goal: the fifteen cells of GOAL, its table included. The studies of AOQ, with --mined:
    aoq (triplet-sh, off-tri, off-quin, aoq), aoq-batch (a larger batch instead), aoq-penalties (alpha and beta),
    aoq-draws (uniform, normal, by similarity)."""
    mined: str | None = None
    """A table of `tercet mine`, for those objectives that take one: off-tri, off-quin, aoq."""
    models: Names = ("heads",)
    """Systems or published recipes; every objective is trained on each."""
    vary: NamedValues = field(default_factory=dict)
    """Settings of training, each with several values that are all crossed: batch_size=64,128."""
    seeds: int = 3
    """How many seeds; every objective gets the same ones, starting at 0."""
    tune: Literal["lr"] | None = None
    """lr: every objective gets the same learning rates to choose from, on validation, with a seed that is not
    reported. Without it one learning rate serves all, chosen by no result."""
    tune_factors: Annotated[tuple[float, ...], tyro.conf.arg(metavar="FACTOR ...")] = (0.3, 1.0, 3.0)
    """What --tune lr multiplies the learning rate by."""
    metric: str = "rsum"
    """What is tested, and orders the table: rsum, or a recall such as t2i_r1."""
    protocols: Names = ()
    """Protocols of evaluation, a table each: coco-1k, coco-5k, flickr-1k, ... None for the test split as it is."""

    epochs: int | None = None
    """Passes over the training captions; for smooth-ap, which sees several captions of an image at a time, as many
    steps. None takes the recipe's, or 6 on scenes."""
    model_settings: NamedValues = field(default_factory=dict)
    """Settings of the model, such as joint_dim=512."""
    train: NamedValues = field(default_factory=dict)
    """Any further settings of `tercet train`, for all runs: batch_size=64 learning_rate=3e-4."""
    ignore_equal_text: bool = False
    """A caption that stands word for word under another image too is no negative of that image."""

    image_encoder: str | None = None
    """Extract features of pictures with this frozen encoder first, once (efficientnet-lite2, or any of Hugging Face);
    needed where the data has none."""
    text_encoder: str | None = None
    """The same for captions: minilm, bag-of-words, or any of Hugging Face."""
    features: str | None = None
    """Which features: {split}_{features}.npy of a precomp folder (default ims), or regions of scenes."""
    images: Path | None = None
    """Folder of image files, where it is not found beside the data."""

    workers: int | None = None
    """Runs at a time, each in a process of its own; None takes as many as there are cores."""
    runs: Path = Path("runs")
    """Where run folders, tables and the report go."""

    def __post_init__(self) -> None:
        for name in ("seeds", "epochs", "workers"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ValueError(f"--{name} must be a whole number of at least 1, got {value!r}")
        if not self.objectives or not self.models:
            raise ValueError(f"--{'models' if self.objectives else 'objectives'} needs at least one name")
        if not self.tune_factors or not all(0 < factor < float("inf") for factor in self.tune_factors):
            raise ValueError(f"--tune-factors must be above 0, got {self.tune_factors}")
        if len(set(self.tune_factors)) < len(self.tune_factors):
            raise ValueError(f"--tune-factors names one twice: {self.tune_factors}")

    def varied(self) -> dict[str, tuple[Any, ...]]:
        """The values of each setting that is varied: `64,128` is two of them."""
        return {name: _several(value) for name, value in self.vary.items()}


def settings_of(given: Mapping[str, Any]) -> CompareSettings:
    """Of the function's keywords: one name may stand for several, and a path may be a string."""
    known = [item.name for item in fields(CompareSettings)]
    for name in given:
        if name not in known:
            near = get_close_matches(name, known, n=1)
            hint = f" (did you mean {near[0]}?)" if near else ""
            raise ValueError(f"compare has no setting {name!r}{hint}; it has: {', '.join(known)}")
    kinds = get_type_hints(CompareSettings)
    kept = {}
    for name, value in given.items():
        alone = name in ("objectives", "models", "protocols") and isinstance(value, str)
        kept[name] = as_kept(name, (value,) if alone else value, kinds[name])
    return CompareSettings(**kept)


def _several(value: Any) -> tuple[Any, ...]:
    """Each is read as JSON where it can be."""
    if isinstance(value, (list, tuple)):
        return tuple(value)
    return (
        tuple(named_values([f"value={part}"])["value"] for part in str(value).split(","))
        if isinstance(value, str)
        else (value,)
    )
