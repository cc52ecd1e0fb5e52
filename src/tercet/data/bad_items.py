"""`--skip-bad`: images and features that cannot be read are reported, or skipped and listed, before any work."""

import os
from dataclasses import replace

import numpy as np

from tercet.console import SILENT, Progress
from tercet.data.collate import prefetch
from tercet.data.dataset import DataSet, subset
from tercet.data.image_io import ImageSource, open_image
from tercet.data.textio import ErrorPolicy


def without_bad_images(data: DataSet, errors: ErrorPolicy, progress: Progress = SILENT) -> DataSet:
    """Decode every image and report those that cannot be decoded; skip them if `errors` skips."""

    def decoding_error(image_file: ImageSource) -> str | None:
        try:
            open_image(image_file)
        except ValueError as error:
            return str(error)
        return None

    splits = {}
    for name, split in data.splits.items():
        if split.image_files is None:
            why = data.no_images or "it has no image files: pass the image folder with --images"
            raise ValueError(f"{data.path}: no images of {name} to encode: {why}")
        bar = progress.bar(f"checking images of {name}", len(split.image_files))
        valid = []
        for image, error in enumerate(prefetch(decoding_error, split.image_files, workers=os.cpu_count() or 1)):
            bar.advance()
            if error is None:
                valid.append(image)
            else:
                errors.report(f"{name}, image {split.image_names[image]}", error)
        splits[name] = split if len(valid) == len(split.image_files) else subset(split, np.array(valid, dtype=np.int64))
        if not valid:
            raise ValueError(f"{data.path}: none of the images of {name} can be read")
    return replace(data, splits=splits, skipped=[*data.skipped, *errors.messages])


def without_bad_features(data: DataSet, errors: ErrorPolicy) -> DataSet:
    """Read all features and report every image with NaN or infinity in its features; skip it if `errors` skips."""
    splits = {}
    for name, split in data.splits.items():
        bad: set[int] = set()
        for rows, of_captions in ((split.features, False), (split.boxes, False), (split.caption_features, True)):
            for item in rows.nonfinite_items() if rows is not None else ():
                assert rows is not None
                errors.report(f"{rows.location}, row {rows.row(item)}", "NaN or infinity")
                bad.add(int(split.owners[item]) if of_captions else item)
        kept = np.array([image for image in range(len(split.image_names)) if image not in bad], dtype=np.int64)
        if len(kept):
            splits[name] = split if not bad else subset(split, kept)
    if not splits:
        raise ValueError(f"{data.path}: no image has valid features; first error: {errors.messages[0]}")
    return replace(data, splits=splits, skipped=[*data.skipped, *errors.messages])
