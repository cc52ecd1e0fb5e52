"""`tercet data inspect`, `tercet data convert`, `tercet data split` and `tercet features`."""

import sys
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from tercet.console import ConsoleProgress, print_lines, print_skipped, printable, terminal_console
from tercet.data.bad_items import without_bad_features
from tercet.data.dataset import DataSet, limit_captions, select_splits
from tercet.data.encoders.extract import extract
from tercet.data.encoders.registry import image_encoder, text_encoder
from tercet.data.formats import butd, open_data, split_file
from tercet.data.formats.columns import Columns
from tercet.data.formats.converted import conversion_of, is_converted
from tercet.data.formats.parquet import write_parquet
from tercet.data.formats.precomp import write_precomp
from tercet.data.formats.split_file import DataSource
from tercet.data.inspect import DatasetSummary, summarise
from tercet.data.settings import Convert, Features, Inspect, MakeSplits
from tercet.data.splitting import write_split_file
from tercet.data.textio import ErrorPolicy

ERRORS, FINDINGS = 1, 3  # exit codes; 2 is a wrong command
MAX_LISTED = 10  # errors that are printed; the rest are counted


def inspect(settings: Inspect) -> None:
    """Print a summary, all errors and all findings. Exits with code 1 if there are errors, else 3 with findings."""
    data = _open(settings, skip_bad=True)
    with ConsoleProgress() as progress:
        summary = summarise(data, progress)
    _print(data, summary, terminal_console(emoji=False))
    for problems, kind, code in ((summary.errors, "error", ERRORS), (summary.findings, "finding", FINDINGS)):
        if problems and not (code == ERRORS and settings.skip_bad):
            count = f"{len(problems):,} {kind}{'s' if len(problems) > 1 else ''}"
            print_lines(f"tercet data inspect: {count} in {settings.path}", to_stderr=True)
            sys.exit(code)


def convert(settings: Convert) -> None:
    """Write the dataset in another format and print where, with warnings and skipped items."""
    if butd.recognise(Path(settings.path)):
        _convert_butd(settings)
        return
    if settings.captions is not None:
        raise ValueError(f"--captions is only for a BUTD .tsv; {settings.path} has its own captions")
    data = _open(settings, skip_bad=settings.skip_bad)
    if data.sides.image_is_text:
        raise ValueError(f"{settings.path} has passages and queries: only images with captions can be converted")
    data = data if settings.limit_captions is None else limit_captions(data, settings.limit_captions)
    data = without_bad_features(data, ErrorPolicy(skip=settings.skip_bad))
    if settings.target.exists() and is_converted(settings.target, conversion_of(data, settings.to)):
        _report(f"{settings.target} already holds this conversion", data.skipped, [])
        return
    write = {"precomp": write_precomp, "parquet": write_parquet}[settings.to]
    with ConsoleProgress() as progress:
        total = sum(len(split.image_names) for split in data.splits.values())
        warnings = write(data, settings.target, progress.bar(f"writing {settings.to}", total))
    _report(f"Wrote {settings.target}", data.skipped, warnings)


def split(settings: MakeSplits) -> None:
    """Write a split file and print what is in it."""
    target = settings.target
    if target.suffix != ".json":
        raise ValueError(f"{target}: a split file is JSON: give it a name that ends in .json")
    generated = not Path(settings.path).exists()
    path = settings.path if generated else str(Path(settings.path).resolve())
    images = None if settings.images is None else str(settings.images.resolve())
    columns = Columns.of(settings)
    source = DataSource(path, settings.format, images, settings.skip_bad, vars(columns) if columns else None)
    if target.exists():
        if not split_file.recognise(target) or not split_file.is_made_of(target, source, settings.seed):
            raise ValueError(f"{target} already exists and is something else; nothing is overwritten")
        print_lines(f"{target} already holds these splits: {split_file.read_summary(target)}")
        return
    data = open_data(
        settings.path, format=settings.format, images=settings.images, skip_bad=settings.skip_bad, columns=columns
    )
    with ConsoleProgress() as progress:
        summary = write_split_file(target, data, source, settings.seed, progress, "; --skip-bad leaves them out")
    _report(f"Wrote {target}: {summary}", split_file.read_skipped(target), [])


def _open(settings: Inspect | Convert | Features, *, skip_bad: bool) -> DataSet:
    return open_data(
        settings.path,
        format=settings.format,
        images=settings.images,
        features=settings.features,
        skip_bad=skip_bad,
        columns=Columns.of(settings),
    )


def _convert_butd(settings: Convert) -> None:
    if settings.captions is None:
        raise ValueError(f"{settings.path} has regions but no captions: pass a dataset with --captions")
    if settings.to != "precomp":
        raise ValueError(
            f"a BUTD .tsv can only be converted to precomp, got --to {settings.to}; convert the result in a second step"
        )
    files, errors = butd.files_of(Path(settings.path)), ErrorPolicy(skip=settings.skip_bad)
    captions = open_data(
        settings.captions, images=settings.images, skip_bad=settings.skip_bad, columns=Columns.of(settings)
    )
    captions = captions if settings.limit_captions is None else limit_captions(captions, settings.limit_captions)
    if settings.target.exists() and is_converted(settings.target, conversion_of(captions, settings.to, files)):
        _report(f"{settings.target} already holds this conversion", captions.skipped, [])
        return
    with ConsoleProgress() as progress:
        total = 2 * sum(file.stat().st_size for file in files)
        warnings = butd.convert(files, captions, settings.target, errors, progress.bar("reading regions", total))
    _report(f"Wrote {settings.target}", [*captions.skipped, *errors.messages], warnings)


def features(settings: Features) -> None:
    """Extract features and print where, with skipped items."""
    data = _open(settings, skip_bad=settings.skip_bad)
    data = select_splits(data, settings.splits) if settings.splits else data
    if settings.image_encoder == settings.text_encoder == "none":
        raise ValueError("nothing to encode: --image-encoder and --text-encoder are both none")
    no_images = settings.image_encoder == "none" or data.sides.image_is_text
    images = None if no_images else image_encoder(settings.image_encoder, grid=settings.grid)
    texts = None if settings.text_encoder == "none" else text_encoder(settings.text_encoder)
    errors = ErrorPolicy(skip=settings.skip_bad)
    with ConsoleProgress() as progress:
        written = extract(
            data,
            settings.target,
            images,
            texts,
            dtype=settings.dtype,
            errors=errors,
            progress=progress,
            image_folder=settings.images,
        )
    message = f"Wrote {settings.target}" if written else f"{settings.target} already holds these features"
    _report(message, [*data.skipped, *errors.messages], [])


def _report(message: str, skipped: Sequence[str], warnings: list[str]) -> None:
    print_lines(message, *warnings)
    print_skipped(skipped)


def _print(data: DataSet, summary: DatasetSummary, console: Console) -> None:
    console.print(f"[bold]{escape(str(data.path))}[/] (format: {data.format})", soft_wrap=True)
    table = Table(box=None, header_style="bold", pad_edge=False)
    sides = data.sides
    per_image, words = f"{sides.captions}/{sides.image}", f"words/{sides.caption}"
    files = () if sides.image_is_text else ("image files",)
    for column in ("split", sides.images, sides.captions, per_image, words, "shared", *files):
        table.add_column(column, justify="left" if column == "split" else "right", no_wrap=True)
    for name, row in summary.splits.items():
        table.add_row(
            _printable(name),
            f"{row.images:,}",
            f"{row.captions:,}",
            _range(*row.captions_per_image),
            _range(*row.words_per_caption),
            f"{row.shared_captions:,}",
            *(["none" if row.image_files is None else f"{row.image_files:,}"] if files else []),
        )
    console.print(table)
    legend = (
        f"{per_image}: min to max, mean; {words}: min to max, median; "
        f"shared: {sides.captions} whose exact text also belongs to another {sides.image}"
    )
    console.print(legend, style="dim", soft_wrap=True)
    for name, row in summary.splits.items():
        if row.features != "none" or row.caption_features != "none":
            features = f"{sides.image} features {row.features}; {sides.caption} features {row.caption_features}"
            console.print(f"{_printable(name)}: {features}", highlight=False)
    for note in summary.notes:
        console.print(_printable(note), style="yellow", highlight=False, soft_wrap=True)
    for finding in summary.findings:
        console.print(f"[bold yellow]finding[/] {_printable(finding)}", highlight=False, soft_wrap=True)
    for equal in summary.equal_images:
        console.print(f"  {_printable(equal)}", highlight=False, soft_wrap=True)
    console.print("\n[bold]Examples[/]")
    for split, image, texts in summary.examples:
        console.print(f"  {_printable(image)} [dim]({_printable(split)})[/]", highlight=False, soft_wrap=True)
        for text in texts[:5]:
            console.print(f"    {_printable(text)}", highlight=False, soft_wrap=True)
    _print_errors(summary.errors, console)


def _printable(text: str) -> str:
    """For a string with console markup."""
    return escape(printable(text))


def _range(minimum: int, middle: float, maximum: int) -> str:
    return f"{minimum}" if minimum == maximum else f"{minimum} to {maximum}, {middle:.3g}"


def _print_errors(errors: list[str], console: Console) -> None:
    if not errors:
        console.print("\nNo errors found.", style="green")
        return
    console.print(f"\n[bold red]{len(errors):,} error{'s' if len(errors) > 1 else ''}[/]")
    for error in errors[:MAX_LISTED]:
        console.print(f"  {_printable(error)}", highlight=False, soft_wrap=True)
    if len(errors) > MAX_LISTED:
        console.print(f"  and {len(errors) - MAX_LISTED:,} more")
