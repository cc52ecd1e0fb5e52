"""`tercet index` and `tercet search`."""

import json

from rich.console import Console
from rich.table import Table
from rich.text import Text

from tercet.console import ConsoleProgress, printable
from tercet.search.build_index import build_index
from tercet.search.index import IndexUpdate
from tercet.search.searcher import Hit, Searcher
from tercet.search.settings import IndexSettings, SearchSettings
from tercet.types import IMAGE_TEXT, Sides

MAX_PRINTED_ERRORS = 5  # unreadable.txt lists all


def index(settings: IndexSettings, console: Console) -> IndexUpdate:
    with ConsoleProgress() as progress:
        update, sides = build_index(settings, progress)
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
