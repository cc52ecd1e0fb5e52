"""Further positives of the COCO test images: ECCV Caption and CxC, as the PyPI package `eccv_caption` holds them."""

import json
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from pathlib import Path

import numpy as np
from jaxtyping import Int

from tercet.evaluation.pairs import Pairs, Positives

PACKAGE = "eccv_caption"
ImageIds = Int[np.ndarray, " image"]
CaptionIds = Int[np.ndarray, " caption"]


@dataclass(frozen=True)
class CocoTest:
    """The 5,000 test images and their 25,000 captions by COCO id, in the published order: five folds of 1,000."""

    image_ids: ImageIds
    caption_ids: CaptionIds
    owners: Int[np.ndarray, " caption"]


def installed() -> bool:
    return find_spec(PACKAGE) is not None


@cache
def coco_test() -> CocoTest:
    """The order of the package's own list of captions; five of an image follow each other."""
    caption_ids = np.load(_folder() / "coco_test_ids.npy").astype(np.int64)
    owner_of = _read("original_caption_to_image.json")
    owner_ids = np.array([owner_of[caption][0] for caption in caption_ids.tolist()])
    image_ids, first, inverse = np.unique(owner_ids, return_index=True, return_inverse=True)
    order = np.argsort(first)
    return CocoTest(image_ids[order], caption_ids, np.argsort(order)[inverse])


def annotated(name: str, image_ids: ImageIds, caption_ids: CaptionIds) -> Positives:
    """The positives of "eccv" or "cxc", each direction its own; what is not among the ids is left out."""
    return positives_of_lists(
        _read(f"{name}_image_to_caption.json"), _read(f"{name}_caption_to_image.json"), image_ids, caption_ids
    )


def positives_of_lists(
    captions_of: dict[int, list[int]], images_of: dict[int, list[int]], image_ids: ImageIds, caption_ids: CaptionIds
) -> Positives:
    """From lists by id to pairs by row: the captions of each image, and the images of each caption."""
    rows, columns = _places(image_ids), _places(caption_ids)
    i2t = [(rows[i], columns[j]) for i, found in captions_of.items() if i in rows for j in found if j in columns]
    t2i = [(rows[i], columns[j]) for j, found in images_of.items() if j in columns for i in found if i in rows]
    return Positives(Pairs.of(i2t), Pairs.of(t2i))


def _places(ids: Int[np.ndarray, " item"]) -> dict[int, int]:
    return {each: place for place, each in enumerate(ids.tolist())}


@cache
def _read(name: str) -> dict[int, list[int]]:
    lists = json.loads((_folder() / name).read_text())
    return {int(key): [int(each) for each in values] for key, values in lists.items()}


def _folder() -> Path:
    # Found without being imported: importing it warns about packages that nothing here needs.
    spec = find_spec(PACKAGE)
    if spec is None or spec.origin is None:
        raise ValueError(f"this protocol needs the annotations of {PACKAGE}: pip install 'tercet[eccv]'")
    return Path(spec.origin).parent / "data"
