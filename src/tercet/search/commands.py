"""`tercet index` and `tercet search`."""

import json
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text

from tercet.data.formats import FORMATS, open_data
from tercet.data.pictures import SUFFIXES
from tercet.retriever import load
from tercet.search.index import Pictures, Updated, update_index
from tercet.search.items import pictures_of_data, pictures_of_folder, printable
from tercet.search.looks import check_indexable, kept_of
from tercet.search.query import Hit, Searcher
from tercet.search.settings import IndexSettings, SearchSettings
from tercet.training.evaluating import checksum_of_weights

SHOWN = 5  # unreadable files that are named on the terminal; all are in unreadable.txt


def index(settings: IndexSettings, console: Console) -> Updated:
    retriever = load(settings.model)  # before any picture is looked at: a wrong path costs nothing
    check_indexable(retriever)
    # By its whole path: an index is looked into from anywhere. What is no path is the name of a generated set.
    source = str(Path(settings.images).resolve()) if Path(settings.images).exists() else settings.images
    pictures = _pictures(source, settings.splits)
    about = {"path": str(settings.model.resolve()), "system": retriever.system}
    about["weights"] = checksum_of_weights(settings.model)
    columns = (TextColumn("embeds"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True)) as progress:
        task = progress.add_task("", total=None)
        updated = update_index(
            settings.out,
            pictures,
            lambda opened: kept_of(retriever, opened),
            about,
            kind=settings.kind,
            source=source,
            advance=lambda done, total: progress.update(task, completed=done, total=total),
        )
    for fault in updated.unreadable[:SHOWN]:
        console.print(f"left out: {fault}", style="yellow", highlight=False, markup=False, soft_wrap=True)
    if len(updated.unreadable) > SHOWN:
        console.print(f"and {len(updated.unreadable) - SHOWN:,} more, listed in unreadable.txt", style="yellow")
    said = f"{updated.added:,} added, {updated.changed:,} changed, {updated.kept:,} kept, {updated.removed:,} removed"
    console.print(f"{settings.out}: {said}", highlight=False, markup=False, soft_wrap=True)
    if updated.recall is not None:
        console.print(f"of the ten nearest, hnsw finds {100 * updated.recall:.1f} % (measured on its own pictures)")
    return updated


def search(settings: SearchSettings, console: Console) -> list[Hit]:
    if (settings.query is None) == (settings.image is None):
        raise ValueError('name words or --image, one of them: tercet search INDEX "two dogs in snow"')
    searcher = Searcher.open(settings.index, settings.model)
    if settings.query is not None:
        hits = searcher.words(settings.query, settings.k)
    else:
        assert settings.image is not None
        hits = searcher.picture(settings.image, settings.k)
    if settings.json:
        print(json.dumps([hit.content() for hit in hits], indent=2))
    else:
        console.print(table(hits))
    return hits


def table(hits: list[Hit]) -> Table:
    shown = Table(box=None)
    shown.add_column("rank", justify="right")
    shown.add_column("similarity", justify="right")
    shown.add_column("picture", overflow="fold")
    with_captions = any(hit.item.captions for hit in hits)
    if with_captions:
        shown.add_column("caption")
    for hit in hits:
        row = [str(hit.rank), f"{hit.similarity:.3f}", hit.item.path]
        row += [hit.item.captions[0] if hit.item.captions else ""] if with_captions else []
        shown.add_row(*(Text(printable(cell)) for cell in row))  # as they are: brackets are no markup
    return shown


def _pictures(given: str, splits: tuple[str, ...]) -> Pictures:
    """Of a data set, or of a plain folder of pictures."""
    folder = Path(given)
    if folder.is_dir() and not any(known.recognise(folder) for known in FORMATS.values()):
        if splits:
            raise ValueError(f"{folder} is a plain folder of pictures, which has no splits: {', '.join(splits)}")
        found = pictures_of_folder(folder)
        if not found:
            raise ValueError(f"{folder}: no pictures there; known are {', '.join(sorted(SUFFIXES))}")
        return found
    return pictures_of_data(open_data(given), splits)
