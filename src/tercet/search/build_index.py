"""`tercet index` without its printing: embed the images of a folder or a dataset into a new or an existing index."""

from pathlib import Path

from tercet.console import SILENT, Progress
from tercet.data.formats import FORMATS, open_data
from tercet.data.image_io import SUFFIXES
from tercet.inference import checksum_of_model, load
from tercet.search.index import ImagesToIndex, IndexUpdate, update_index
from tercet.search.metadata import images_in_dataset, images_in_folder
from tercet.search.settings import IndexSettings
from tercet.search.two_stage import check_indexable, encode_for_index


def build_index(settings: IndexSettings, progress: Progress = SILENT) -> IndexUpdate:
    """Make the index contain exactly these images; an interrupted call resumes."""
    retriever = load(settings.model)  # before reading any image: a wrong path fails at once
    check_indexable(retriever)
    # Absolute, so that the index works from any directory. What is not a path is the name of a generated dataset, or
    # of a model on the hub.
    source = str(Path(settings.images).resolve()) if Path(settings.images).exists() else settings.images
    image_files = _image_files(source, settings.image_folder, settings.splits)
    path = str(settings.model.resolve() if settings.model.exists() else settings.model)
    model = {"path": path, "system": retriever.system, "weights": checksum_of_model(settings.model, retriever)}
    return update_index(
        settings.out,
        image_files,
        lambda images: encode_for_index(retriever, images),
        model,
        kind=settings.kind,
        store=settings.store,
        source=source,
        progress=progress,
    )


def _image_files(source: str, image_folder: Path | None, splits: tuple[str, ...]) -> ImagesToIndex:
    """Return the images of a dataset, or of a plain folder of images."""
    folder = Path(source)
    if folder.is_dir() and not any(data_format.recognise(folder) for data_format in FORMATS.values()):
        if splits:
            raise ValueError(f"{folder} is a plain folder of images and has no splits: {', '.join(splits)}")
        image_files = images_in_folder(folder, image_folder)
        if not image_files:
            raise ValueError(f"{folder}: no images found; supported: {', '.join(sorted(SUFFIXES))}")
        return image_files
    return images_in_dataset(open_data(source, images=image_folder), splits)
