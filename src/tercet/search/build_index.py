"""`tercet index` without its printing: embed the images of a folder or a dataset into a new or an existing index."""

from collections.abc import Sequence
from pathlib import Path

from tercet import runs
from tercet.console import SILENT, Progress, print_skipped
from tercet.data.formats import FORMATS, open_data
from tercet.data.formats.columns import Columns
from tercet.data.image_io import SUFFIXES
from tercet.inference import checksum_of_model, load
from tercet.search.index import ImagesToIndex, IndexUpdate, update_index
from tercet.search.metadata import images_in_dataset, images_in_folder
from tercet.search.settings import IndexSettings
from tercet.search.stored_features import StoredFeatures
from tercet.search.two_stage import check_indexable, encode_for_index
from tercet.types import Sides


def build_index(
    settings: IndexSettings, progress: Progress = SILENT, features: Sequence[Path] = ()
) -> tuple[IndexUpdate, Sides]:
    """Make the index contain exactly these images; an interrupted call resumes. Also returns what these images are.

    `features`: folders of features that are not computed again, besides that of the run.
    """
    retriever = load(settings.model)  # before reading any image: a wrong path fails at once
    check_indexable(retriever)
    # Absolute, so that the index works from any directory. What is not a path is the name of a generated dataset, or
    # of a model on the hub.
    source = str(Path(settings.images).resolve()) if Path(settings.images).exists() else settings.images
    sides = retriever.sides
    image_files = _image_files(source, settings, sides)
    path = str(settings.model.resolve() if settings.model.exists() else settings.model)
    model = {"path": path, "system": retriever.system, "weights": checksum_of_model(settings.model, retriever)}
    known = StoredFeatures(retriever, [*_feature_folders(settings), *features])
    update = update_index(
        settings.out,
        image_files,
        lambda images: encode_for_index(retriever, images),
        model,
        kind=settings.kind,
        store=settings.store,
        source=source,
        known=known,
        skip_bad=settings.skip_bad,
        sides=sides,
        progress=progress,
    )
    return update, sides


def _image_files(source: str, settings: IndexSettings, sides: Sides) -> ImagesToIndex:
    """Return the images or passages of a dataset, or the images of a plain folder."""
    folder, image_folder, splits, columns = Path(source), settings.image_folder, settings.splits, Columns.of(settings)
    if sides.image_is_text:
        data = open_data(source, skip_bad=settings.skip_bad)
        print_skipped(data.skipped)
        if not data.sides.image_is_text:
            raise ValueError(f"{source} has no {sides.images}, which this model takes: give them with --images")
        return images_in_dataset(data, splits)
    if folder.is_dir() and not any(data_format.recognise(folder) for data_format in FORMATS.values()):
        if splits:
            raise ValueError(f"{folder} is a plain folder of images and has no splits: {', '.join(splits)}")
        if columns:
            raise ValueError(f"{folder} is a plain folder of images and has no columns to name")
        image_files = images_in_folder(folder, image_folder)
        if not image_files:
            raise ValueError(f"{folder}: no images found; supported: {', '.join(sorted(SUFFIXES))}")
        return image_files
    data = open_data(source, images=image_folder, skip_bad=settings.skip_bad, columns=columns)
    if data.sides.image_is_text:
        raise ValueError(f"{source} has {data.sides.images} and no images, which this model takes")
    print_skipped(data.skipped)
    return images_in_dataset(data, splits)


def _feature_folders(settings: IndexSettings) -> list[Path]:
    """Where features of the images may be: the data of the run, and the images to index themselves."""
    has_settings = (settings.model / runs.SETTINGS).is_file()
    trained_on = [Path(str(runs.read_settings(settings.model).get("data", "")))] if has_settings else []
    return [*trained_on, Path(settings.images)]
