"""`tercet data inspect`, `tercet data convert` and `tercet features`."""

import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeRemainingColumn
from rich.table import Table

from tercet.data.dataset import DataSet, first_captions, only_splits, without_bad_features
from tercet.data.faults import Faults
from tercet.data.features.encoders import image_encoder, text_encoder
from tercet.data.features.extract import Watch, extract
from tercet.data.formats import butd, open_data
from tercet.data.formats.write import write_parquet, write_precomp
from tercet.data.settings import Convert, Features, Inspect
from tercet.data.summary import Summary, summarise

LISTED = 10  # faults on the screen; the rest are counted


def inspect(settings: Inspect) -> None:
    """Exit code 1 where something is wrong with the data."""
    data = _open(settings, skip_bad=True)
    with _progress() as progress:
        summary = summarise(data, lambda what, total: _bar(progress, what, total))
    _print(data, summary, Console(emoji=False))
    if summary.faults:
        sys.exit(1)


def convert(settings: Convert) -> None:
    if butd.recognise(Path(settings.path)):
        _convert_butd(settings)
        return
    if settings.captions is not None:
        raise ValueError(f"--captions is for a BUTD .tsv; {settings.path} has captions of its own")
    data = _open(settings, skip_bad=settings.skip_bad)
    data = data if settings.first_captions is None else first_captions(data, settings.first_captions)
    data = without_bad_features(data, Faults(skip=settings.skip_bad))
    write = {"precomp": write_precomp, "parquet": write_parquet}[settings.to]
    with _progress() as progress:
        total = sum(len(split.image_names) for split in data.splits.values())
        remarks = write(data, settings.target, _bar(progress, f"writing {settings.to}", total))
    _tell(settings.target, data.skipped, remarks)


def _open(settings: Inspect | Convert | Features, *, skip_bad: bool) -> DataSet:
    return open_data(
        settings.path,
        format=settings.format,
        images=settings.images,
        features=settings.features,
        skip_bad=skip_bad,
    )


def _convert_butd(settings: Convert) -> None:
    if settings.captions is None:
        raise ValueError(f"{settings.path} holds regions but no captions: give --captions DATA as well")
    if settings.to != "precomp":
        raise ValueError("a BUTD .tsv is converted to a precomp folder; convert that one on")
    files, faults = butd.files_of(Path(settings.path)), Faults(skip=settings.skip_bad)
    captions = open_data(settings.captions, images=settings.images, skip_bad=settings.skip_bad)
    captions = captions if settings.first_captions is None else first_captions(captions, settings.first_captions)
    with _progress() as progress:
        total = 2 * sum(file.stat().st_size for file in files)
        remarks = butd.convert(files, captions, settings.target, faults, _bar(progress, "reading regions", total))
    _tell(settings.target, [*captions.skipped, *faults.listed], remarks)


def features(settings: Features) -> None:
    data = _open(settings, skip_bad=settings.skip_bad)
    data = only_splits(data, settings.splits) if settings.splits else data
    if settings.image_encoder == settings.text_encoder == "none":
        raise ValueError("with --image-encoder none and --text-encoder none there is nothing to encode")
    images = None if settings.image_encoder == "none" else image_encoder(settings.image_encoder, grid=settings.grid)
    texts = None if settings.text_encoder == "none" else text_encoder(settings.text_encoder)
    faults = Faults(skip=settings.skip_bad)
    with _progress() as progress:
        made = extract(
            data, settings.target, images, texts, dtype=settings.dtype, faults=faults, watch=_watch(progress)
        )
    _tell(settings.target, [*data.skipped, *faults.listed], [] if made else ["it was there already, made the same way"])


def _watch(progress: Progress) -> Watch:
    current: list[TaskID] = []

    def begin(what: str, total: int) -> None:
        current.append(progress.add_task(what, total=total))

    return Watch(begin, lambda items: progress.update(current[-1], advance=items))


def _tell(target: Path, skipped: Sequence[str], remarks: list[str]) -> None:
    print(f"{target} is ready" + "".join(f"\n{remark}" for remark in remarks))
    if skipped:
        print(f"{len(skipped)} bad items were left out:", *skipped, sep="\n  ", file=sys.stderr)


def _print(data: DataSet, summary: Summary, console: Console) -> None:
    console.print(f"[bold]{escape(str(data.path))}[/]: {data.format}", soft_wrap=True)
    table = Table(box=None, header_style="bold", pad_edge=False)
    for column in ("split", "images", "captions", "an image", "words", "shared", "pictures"):
        table.add_column(column, justify="left" if column == "split" else "right", no_wrap=True)
    for name, row in summary.splits.items():
        table.add_row(
            _shown(name),
            f"{row.images:,}",
            f"{row.captions:,}",
            _range(*row.captions_each),
            _range(*row.words_each),
            f"{row.shared_captions:,}",
            "none" if row.pictures is None else f"{row.pictures:,}",
        )
    console.print(table)
    legend = "an image: captions of one; words: of a caption; shared: captions that another image has too"
    console.print(legend, style="dim", soft_wrap=True)
    for name, row in summary.splits.items():
        if row.features != "none" or row.caption_features != "none":
            console.print(
                f"{_shown(name)}: features {row.features}; of captions {row.caption_features}", highlight=False
            )
    for first, second, what, count in summary.shared:
        console.print(f"{_shown(first)} and {_shown(second)} share {count:,} {what}", style="yellow", highlight=False)
    for remark in summary.remarks:
        console.print(_shown(remark), style="yellow", highlight=False)
    console.print("\n[bold]Examples[/]")
    for split, image, texts in summary.examples:
        console.print(f"  {_shown(image)} [dim]({_shown(split)})[/]", highlight=False, soft_wrap=True)
        for text in texts[:5]:
            console.print(f"    {_shown(text)}", highlight=False, soft_wrap=True)
    _print_faults(summary.faults, console)


def _shown(text: str) -> str:
    """As it is, but for what would move the cursor or be taken for markup."""
    return escape("".join(sign if sign.isprintable() or sign == "\t" else "\ufffd" for sign in text))


def _range(least: int, middle: float, most: int) -> str:
    return f"{least}" if least == most else f"{least} to {most}, {middle:.3g}"


def _print_faults(faults: list[str], console: Console) -> None:
    if not faults:
        console.print("\nNothing is missing or unreadable.", style="green")
        return
    console.print(f"\n[bold red]{len(faults):,} faults[/]")
    for fault in faults[:LISTED]:
        console.print(f"  {_shown(fault)}", highlight=False, soft_wrap=True)
    if len(faults) > LISTED:
        console.print(f"  and {len(faults) - LISTED:,} more")


def _progress() -> Progress:
    columns = (TextColumn("{task.description:<28}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    return Progress(*columns, console=Console(file=sys.stderr), transient=True)


def _bar(progress: Progress, what: str, total: int) -> Callable[[int], None]:
    task = progress.add_task(what, total=total)
    return lambda items: progress.update(task, advance=items)
