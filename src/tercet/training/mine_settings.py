"""What `tercet mine` can be told. Imports nothing heavy: `--help` must be quick."""

from dataclasses import dataclass
from pathlib import Path

import tyro


@dataclass(frozen=True)
class MineSettings:
    """Find the hardest negatives of a whole training set with a trained model, for `tercet train --mined`.

    For every training image the most similar captions, for every caption the most similar images, their own left out.
    Stopped at any moment, it goes on where it was when called again. Guards against false negatives are off unless
    asked for, as published; how much each has left out stands in mined.json.
    """

    model: tyro.conf.Positional[Path]
    """A run or a saved model."""
    data: str = "scenes"
    """The data set whose training split is mined."""
    out: Path | None = None
    """The folder of the table; None for mined/<name of the model>."""
    split: str = "train"
    """train+restval joins two, as COCO's users do."""
    features: str | None = None
    """Which features: {split}_{features}.npy of a precomp folder (default ims), or regions of scenes."""
    images: Path | None = None
    """Folder of image files, where it is not found beside the data."""

    top_captions: int = 2000
    """Captions of every image."""
    top_images: int = 400
    """Images of every caption."""
    shortlist: Path | None = None
    """A table of another model: only its pairs are compared. For cross attention, which takes long to compare
    everything with everything (that is what it does without)."""

    guard_skip: int = 0
    """Leave out so many first ranks of every list."""
    guard_near_duplicates: bool = False
    """Leave out captions that share 80 % of their words with a caption of the image."""
    guard_known: bool = False
    """Leave out what the data knows to be true of an image although it is not its own (scenes knows)."""
    guard_pairs: Path | None = None
    """Leave out the pairs of a file: numbers of an image and a caption of the split on every line, from 0."""
    guard_margin: float | None = None
    """Leave out what is more similar than the anchor's most similar positive less this."""
