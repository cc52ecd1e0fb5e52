"""`tercet`: a table of commands. Each is imported only when it is called."""

import os
import sys
from collections.abc import Callable
from dataclasses import dataclass
from io import TextIOWrapper

import tercet


def main() -> None:
    """Exit code 2 and one line for a user's mistake; 130 after Ctrl-C."""
    given = sys.argv[1:]
    if not given or given[0] in ("-h", "--help"):
        print(_help())
        return
    if given[0] == "--version":
        print(f"tercet {tercet.__version__}")
        return
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="replace")  # a terminal that cannot print a sign is no reason to stop
    try:
        _command(given[0])(given[1:])
    except (ValueError, OSError) as mistake:
        print(f"tercet {given[0]}: {mistake}", file=sys.stderr)
        sys.exit(2)
    except KeyboardInterrupt:
        print(f"tercet {given[0]}: stopped; what was finished is kept, call again to go on", file=sys.stderr)
        sys.exit(130)


def _compare(arguments: list[str]) -> None:
    import tyro

    from tercet.comparison.settings import CompareSettings

    settings = tyro.cli(CompareSettings, prog="tercet compare", args=arguments)

    from rich.console import Console

    from tercet.comparison.compare import run_comparison

    comparison = run_comparison(settings, Console(stderr=True))
    comparison.print(Console())
    report = comparison.save()
    print(f"\nReport: {report}; tables (Markdown, LaTeX, CSV, JSON) and figures beside it")
    if comparison.results.failures:
        sys.exit(1)  # what finished is compared, and yet not all is well


def _data(arguments: list[str]) -> None:
    import tyro

    from tercet.data.settings import Convert, Inspect

    settings = tyro.extras.subcommand_cli_from_dict(
        {"inspect": Inspect, "convert": Convert}, prog="tercet data", args=arguments
    )

    from tercet.data import commands

    if isinstance(settings, Inspect):
        commands.inspect(settings)
    else:
        commands.convert(settings)


def _features(arguments: list[str]) -> None:
    import tyro

    from tercet.data.settings import Features

    settings = tyro.cli(Features, prog="tercet features", args=arguments)

    from tercet.data import commands

    commands.features(settings)


def _train(arguments: list[str]) -> None:
    import tyro

    from tercet.training.config import defaults_for
    from tercet.training.settings import TrainSettings

    settings = tyro.cli(TrainSettings, prog="tercet train", args=arguments, default=defaults_for(arguments))

    from rich.console import Console

    from tercet.training.run import train_run
    from tercet.training.summary import print_run

    run = train_run(settings)
    if os.environ.get("RANK", "0") == "0":  # of several processes one speaks
        print_run(run, Console())


def _evaluate(arguments: list[str]) -> None:
    import tyro

    from tercet.training.evaluate_settings import EvaluateSettings

    settings = tyro.cli(EvaluateSettings, prog="tercet evaluate", args=arguments)

    from rich.console import Console

    from tercet.training.evaluating import evaluate_models
    from tercet.training.summary import print_evaluation

    print_evaluation(evaluate_models(settings), Console(), legacy=settings.explain_legacy)


def _mine(arguments: list[str]) -> None:
    import tyro

    from tercet.training.mine_settings import MineSettings

    settings = tyro.cli(MineSettings, prog="tercet mine", args=arguments)

    from tercet.training.mining import mine_table

    mine_table(settings)


def _analyse(arguments: list[str]) -> None:
    import tyro

    from tercet.dissection.settings import AnalyseSettings

    settings = tyro.cli(AnalyseSettings, prog="tercet analyse", args=arguments)

    from rich.console import Console

    from tercet.dissection.analyse import analyse

    for file in analyse(settings, Console()):
        print(file)


def _doctor(arguments: list[str]) -> None:
    import tyro

    from tercet.dissection.doctor_settings import DoctorSettings

    settings = tyro.cli(DoctorSettings, prog="tercet doctor", args=arguments)

    from rich.console import Console

    from tercet.dissection.doctor_page import print_report, run_doctor

    report, page = run_doctor(settings)
    print_report(report, Console())
    print(f"\nPage: {page}; all numbers in doctor.json beside it")


def _index(arguments: list[str]) -> None:
    import tyro

    from tercet.search.settings import IndexSettings

    settings = tyro.cli(IndexSettings, prog="tercet index", args=arguments)

    from rich.console import Console

    from tercet.search.commands import index

    index(settings, Console())


def _search(arguments: list[str]) -> None:
    import tyro

    from tercet.search.settings import SearchSettings

    settings = tyro.cli(SearchSettings, prog="tercet search", args=arguments)

    from rich.console import Console

    from tercet.search.commands import search

    search(settings, Console())


def _serve(arguments: list[str]) -> None:
    import tyro

    from tercet.search.settings import ServeSettings

    settings = tyro.cli(ServeSettings, prog="tercet serve", args=arguments)

    from rich.console import Console

    try:
        from tercet.search.server.serve import serve
    except ImportError as error:
        raise ValueError(f"serving needs {error.name}: pip install 'tercet[search]'") from error

    serve(settings, Console())


def _import(arguments: list[str]) -> None:
    from pathlib import Path
    from typing import Literal

    import tyro

    @dataclass(frozen=True)
    class Import:
        """Read an authors' checkpoint and write a folder that `tercet.load` takes. Nothing in the file is executed."""

        system: tyro.conf.Positional[Literal["vsepp", "vsrn", "vse-infinity", "scan", "bfan", "xvlm"]]
        file: tyro.conf.Positional[Path]
        """The checkpoint: model_best.pth.tar and its like."""
        target: tyro.conf.Positional[Path]
        """A folder that does not exist yet."""
        vocabulary: Path | None = None
        """The authors' vocabulary, JSON or pickle: with it the model reads plain texts."""
        tokenizer: str | None = None
        """For BERT: name or path of its tokenizer."""

    given = tyro.cli(Import, prog="tercet import", args=arguments)

    from tercet.retriever import load_original

    load_original(given.system, given.file, vocabulary=given.vocabulary, tokenizer=given.tokenizer).save(given.target)
    print(f"{given.target} is ready: tercet.load({str(given.target)!r})")
    if given.vocabulary is None and given.tokenizer is None:
        print("without --vocabulary or --tokenizer it takes numbers of words, not texts", file=sys.stderr)


COMMANDS: dict[str, tuple[Callable[[list[str]], None], str]] = {
    "compare": (_compare, "train a grid of objectives x seeds and compare what they retrieve"),
    "train": (_train, "train a model with one objective; stopped at any moment, it goes on exactly where it was"),
    "evaluate": (_evaluate, "rank every positive of a split with trained models, under a named protocol"),
    "mine": (_mine, "find the hardest negatives of a whole training set, for a second round"),
    "analyse": (_analyse, "why an objective wins: contributing samples, diagrams, who pulls and pushes, examples"),
    "data": (_data, "inspect or convert images with captions, in any of the formats people have"),
    "features": (_features, "run frozen encoders once over a data set"),
    "doctor": (_doctor, "look at a finished run for what often goes wrong, with evidence and advice"),
    "index": (_index, "embed pictures with a trained model, for searching them"),
    "search": (_search, "find pictures of an index by words or by another picture"),
    "serve": (_serve, "a page in the browser: search, compare models, watch runs, try objectives"),
    "import": (_import, "turn an authors' checkpoint into a model of Tercet, without running anything in it"),
}


def _command(name: str) -> Callable[[list[str]], None]:
    if name not in COMMANDS:
        raise ValueError(f"no such command; known: {', '.join(COMMANDS)}")
    return COMMANDS[name][0]


def _help() -> str:
    rows = "\n".join(f"  {name:<10} {meaning}" for name, (_, meaning) in COMMANDS.items())
    return (
        "tercet: train, compare and dissect objectives for image-text retrieval\n\n"
        f"usage: tercet COMMAND [settings]\n\n{rows}\n\n"
        "tercet COMMAND --help lists a command's settings. tercet --version prints the version."
    )


if __name__ == "__main__":
    main()
