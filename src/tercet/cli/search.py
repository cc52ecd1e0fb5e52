"""`tercet index` and `tercet search`."""

import json
from pathlib import Path

from rich.console import Console
from rich.table import Table
from rich.text import Text

from tercet import runs
from tercet.console import ConsoleProgress, print_skipped, printable
from tercet.data.formats import FORMATS, open_data
from tercet.data.formats.columns import Columns
from tercet.data.image_io import SUFFIXES
from tercet.inference import checksum_of_weights, load
from tercet.search.index import ImagesToIndex, IndexUpdate, update_index
from tercet.search.metadata import images_in_dataset, images_in_folder
from tercet.search.searcher import Hit, Searcher
from tercet.search.settings import IndexSettings, SearchSettings
from tercet.search.stored_features import StoredFeatures
from tercet.search.two_stage import check_indexable, encode_for_index
from tercet.types import IMAGE_TEXT, Sides

MAX_PRINTED_ERRORS = 5  # unreadable.txt lists all


def index(settings: IndexSettings, console: Console) -> IndexUpdate:
    retriever = load(settings.model)  # before reading any image: a wrong path fails at once
    check_indexable(retriever)
    # Absolute, so that the index works from any directory. What is not a path is the name of a generated dataset.
    source = str(Path(settings.images).resolve()) if Path(settings.images).exists() else settings.images
    sides = retriever.sides
    image_files = _image_files(source, settings, sides)
    model = {"path": str(settings.model.resolve()), "system": retriever.system}
    model["weights"] = checksum_of_weights(settings.model)
    known = StoredFeatures(retriever, _feature_folders(settings))
    with ConsoleProgress() as progress:
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
    for error in update.unreadable[:MAX_PRINTED_ERRORS]:
        console.print(f"skipped: {error}", style="yellow", highlight=False, markup=False, soft_wrap=True)
    if len(update.unreadable) > MAX_PRINTED_ERRORS:
        more = len(update.unreadable) - MAX_PRINTED_ERRORS
        console.print(f"skipped {more:,} more {sides.images}, listed in unreadable.txt", style="yellow")
    counts = f"{update.added:,} added, {update.changed:,} changed"
    counts += f", {update.unchanged:,} unchanged, {update.removed:,} removed"
    console.print(f"{settings.out}: {counts}", highlight=False, markup=False, soft_wrap=True)
    if update.recall is not None:
        console.print(f"hnsw recall@10: {100 * update.recall:.1f} % (queries: {sides.images} of the index)")
    return update


def _feature_folders(settings: IndexSettings) -> list[Path]:
    """Where features of the images may be: the data of the run, and the images to index themselves."""
    has_settings = (settings.model / runs.SETTINGS).is_file()
    trained_on = [Path(str(runs.read_settings(settings.model).get("data", "")))] if has_settings else []
    return [*trained_on, Path(settings.images)]


def search(settings: SearchSettings, console: Console) -> list[Hit]:
    if (settings.query is None) == (settings.image is None):
        raise ValueError('give either a query text or --image: tercet search INDEX "two dogs in snow"')
    searcher = Searcher.open(settings.index, settings.model)
    if settings.query is not None:
        hits = searcher.search_text(settings.query, settings.k)
    else:
        assert settings.image is not None
        hits = searcher.search_image(settings.image, settings.k)
    if settings.json:
        print(json.dumps([hit.content() for hit in hits], indent=2))
    else:
        console.print(results_table(hits, searcher.sides))
    return hits


def results_table(hits: list[Hit], sides: Sides = IMAGE_TEXT) -> Table:
    table = Table(box=None)
    table.add_column("rank", justify="right")
    table.add_column("similarity", justify="right")
    table.add_column(sides.image, overflow="fold")
    with_captions = any(hit.item.captions for hit in hits) and not sides.image_is_text
    if with_captions:
        table.add_column(sides.caption)
    if sides.image_is_text:
        table.add_column("text", overflow="fold")
    for hit in hits:
        row = [str(hit.rank), f"{hit.similarity:.3f}", hit.item.path]
        row += [hit.item.captions[0] if hit.item.captions else ""] if with_captions else []
        row += [] if hit.item.text is None else [hit.item.text]
        table.add_row(*(Text(printable(cell)) for cell in row))  # Text: brackets are not parsed as markup
    return table


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
