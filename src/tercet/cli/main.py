"""The command `tercet`: a table of commands. Settings and implementation are imported only when a command is run."""

import os
import sys
from collections.abc import Callable, Sequence
from contextlib import redirect_stderr
from dataclasses import fields
from importlib import import_module
from io import StringIO, TextIOWrapper
from typing import Any, NamedTuple, NoReturn

import tercet
from tercet.interrupt import exit_code, stop_on_signals
from tercet.names import suggest
from tercet.plugins import trust


class Command(NamedTuple):
    help: str
    run: Callable[[Any], None]
    settings: str
    """module:Class of the settings; a light module, so that --help is fast. Subcommands: name=module:Class ..."""


def main(argv: Sequence[str] | None = None) -> None:
    """Run a command. Exit code 2 and a one-line message after a user error, 130 after Ctrl-C, 143 after SIGTERM."""
    arguments = sys.argv[1:] if argv is None else list(argv)
    try:
        _run(arguments)
        sys.stdout.flush()
    except BrokenPipeError:
        # The reader has closed the pipe, as `head` does: nothing to report. Python flushes stdout once more at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(141)


def _run(arguments: list[str]) -> None:
    if not arguments or arguments[0] in ("-h", "--help"):
        print(_help())
        return
    if arguments[0] == "--version":
        print(f"tercet {tercet.__version__}")
        return
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="replace")  # a character that the terminal cannot print must not stop the command
    try:
        command = _command(arguments[0])
        trust(_trusted(arguments))  # before --config is read
        with stop_on_signals():
            command.run(_parse(arguments[0], command, arguments[1:]))
    except BrokenPipeError:
        raise
    except (ValueError, OSError) as error:
        _stop(2, f"tercet {arguments[0]}: {error}")
    except KeyboardInterrupt as error:
        reason = "stopped; finished work is kept, run the command again to resume"
        _stop(exit_code(error), f"tercet {arguments[0]}: {reason}")


def _stop(code: int, reason: str) -> NoReturn:
    from tercet.console import print_lines

    print_lines(reason, to_stderr=True)
    sys.exit(code)


def _parse(name: str, command: Command, arguments: list[str]) -> Any:
    """The settings; `ValueError` with what the parser says in a box of lines."""
    boxed = StringIO()
    try:
        with redirect_stderr(boxed):
            return _parsed(name, command, arguments)
    except SystemExit as stop:
        if stop.code != 2:
            raise
        from tercet.cli.usage_errors import one_line

        classes = [_attribute(path.rpartition("=")[2]) for path in command.settings.split()]
        flags = [f"--{field.name.replace('_', '-')}" for settings in classes for field in fields(settings)]
        raise ValueError(one_line(boxed.getvalue(), flags)) from None


def _parsed(name: str, command: Command, arguments: list[str]) -> Any:
    import tyro

    program = f"tercet {name}"
    if "=" in command.settings:
        subcommands = {key: _attribute(path) for key, path in (item.split("=") for item in command.settings.split())}
        return tyro.extras.subcommand_cli_from_dict(subcommands, prog=program, args=arguments)
    settings = _attribute(command.settings)
    if name == "train":  # so that --help shows the values of the recipe that --model names
        from tercet.training.settings import defaults_for

        return tyro.cli(settings, prog=program, args=arguments, default=defaults_for(arguments))
    return tyro.cli(settings, prog=program, args=arguments)


def _trusted(arguments: Sequence[str]) -> list[str]:
    """The files after --trust, on any command that has it."""
    files: list[str] = []
    for position, argument in enumerate(arguments):
        if argument.startswith("--trust="):
            files.append(argument.partition("=")[2])
        elif argument == "--trust":
            following = arguments[position + 1 :]
            end = next((n for n, word in enumerate(following) if word.startswith("-")), len(following))
            files += following[:end]
    return files


def _attribute(path: str) -> Any:
    module, _, name = path.partition(":")
    return getattr(import_module(module), name)


def _compare(settings: Any) -> None:
    from tercet.comparison.compare import run_comparison
    from tercet.console import print_lines, terminal_console

    if settings.from_files:
        from tercet.comparison.from_files import compare_files

        compare_files(settings, terminal_console())
        return
    comparison = run_comparison(settings, terminal_console(stderr=True))
    comparison.print()
    report = comparison.save()
    print_lines("", f"Report: {report}; tables (Markdown, LaTeX, CSV, JSON) and figures are in the same folder")
    if comparison.results.failures:
        sys.exit(1)  # finished runs were compared, but scripts must notice the failed ones


def _fit(settings: Any) -> None:
    from tercet.console import terminal_console
    from tercet.fitting.run_fit import run_fit

    run_fit(settings, terminal_console(stderr=True)).print()


def _train(settings: Any) -> None:
    from tercet.training.train import train_run

    run = train_run(settings)
    if os.environ.get("RANK", "0") == "0":  # under torchrun only rank 0 prints
        run.print()


def _evaluate(settings: Any) -> None:
    from tercet.cli.metrics_table import print_evaluation
    from tercet.console import terminal_console
    from tercet.training.evaluate_run import evaluate_models

    print_evaluation(evaluate_models(settings), terminal_console(), legacy=settings.explain_legacy)


def _mine(settings: Any) -> None:
    from tercet.training.mine_run import mine_table

    mine_table(settings)


def _analyse(settings: Any) -> None:
    from tercet.analysis.reports.analyse import analyse
    from tercet.console import print_lines, terminal_console

    for file in analyse(settings, terminal_console()):
        print_lines(str(file))


def _doctor(settings: Any) -> None:
    from tercet.analysis.reports.doctor_report import print_report, run_doctor
    from tercet.console import print_lines, terminal_console

    report, page = run_doctor(settings)
    print_report(report, terminal_console())
    print_lines("", f"Page: {page}; all numbers: doctor.json in the same folder")


def _data(settings: Any) -> None:
    from tercet.cli.data import convert, inspect, split
    from tercet.data.settings import Convert, Inspect

    if isinstance(settings, Inspect):
        inspect(settings)
    elif isinstance(settings, Convert):
        convert(settings)
    else:
        split(settings)


def _features(settings: Any) -> None:
    from tercet.cli.data import features

    features(settings)


def _index(settings: Any) -> None:
    from tercet.cli.search import index
    from tercet.console import terminal_console

    index(settings, terminal_console())


def _search(settings: Any) -> None:
    from tercet.cli.search import search
    from tercet.console import terminal_console

    search(settings, terminal_console())


def _serve(settings: Any) -> None:
    from tercet.console import terminal_console

    try:
        from tercet.serve.server import serve
    except ImportError as error:
        raise ValueError(f"tercet serve needs {error.name}: pip install 'tercet[search]'") from error

    serve(settings, terminal_console())


def _list(settings: Any) -> None:
    from tercet.cli.list import print_list
    from tercet.console import terminal_console

    print_list(settings, terminal_console())


def _completion(settings: Any) -> None:
    from tercet.cli.completion import completion_script

    classes = {
        name: [_attribute(path.rpartition("=")[2]) for path in command.settings.split()]
        for name, command in COMMANDS.items()
    }
    print(completion_script(settings.shell, {name: (COMMANDS[name].help, classes[name]) for name in COMMANDS}), end="")


def _import(settings: Any) -> None:
    from tercet.console import print_lines
    from tercet.inference import load_original

    model = load_original(settings.system, settings.file, vocabulary=settings.vocabulary, tokenizer=settings.tokenizer)
    model.save(settings.target)
    print_lines(f"wrote {settings.target}; load it with tercet.load({str(settings.target)!r})")
    if settings.vocabulary is None and settings.tokenizer is None:
        print_lines("note: without --vocabulary or --tokenizer the model embeds token ids only", to_stderr=True)


def _export(settings: Any) -> None:
    from tercet.console import print_lines
    from tercet.exporting import export

    folder = export(settings.model, to=settings.to, out=settings.out)
    print_lines(f"wrote {folder}; its README.md is a model card and says how to load it")


COMMANDS = {
    "fit": Command(
        "from data to a model and a search index, within a budget of time: split, compare, train, evaluate, index",
        _fit,
        "tercet.fitting.settings:FitSettings",
    ),
    "compare": Command(
        "train a grid of objectives x seeds and compare retrieval metrics, with significance tests",
        _compare,
        "tercet.comparison.settings:CompareSettings",
    ),
    "train": Command(
        "train a model with one objective; an interrupted run resumes exactly",
        _train,
        "tercet.training.settings:TrainSettings",
    ),
    "evaluate": Command(
        "evaluate trained models on a split, under a named protocol",
        _evaluate,
        "tercet.training.settings:EvaluateSettings",
    ),
    "mine": Command(
        "mine the hardest negatives of a whole training split, for a second training round",
        _mine,
        "tercet.training.settings:MineSettings",
    ),
    "analyse": Command(
        "analyse trained runs: contributing samples, diagrams, gradient breakdown, retrieved examples",
        _analyse,
        "tercet.analysis.reports.settings:AnalyseSettings",
    ),
    "data": Command(
        "inspect, split or convert a dataset (CSV, JSON, Parquet, precomputed features, ...)",
        _data,
        "inspect=tercet.data.settings:Inspect split=tercet.data.settings:MakeSplits "
        "convert=tercet.data.settings:Convert",
    ),
    "features": Command(
        "extract features of a dataset with frozen encoders", _features, "tercet.data.settings:Features"
    ),
    "doctor": Command(
        "diagnose a finished run: common training faults, with measurements and advice",
        _doctor,
        "tercet.analysis.reports.settings:DoctorSettings",
    ),
    "index": Command(
        "build a search index: embed images with a trained model", _index, "tercet.search.settings:IndexSettings"
    ),
    "search": Command("search an index by text or by image", _search, "tercet.search.settings:SearchSettings"),
    "serve": Command(
        "start a web server: search, compare models, monitor runs, try objectives",
        _serve,
        "tercet.search.settings:ServeSettings",
    ),
    "import": Command(
        "convert a checkpoint of the original authors to a Tercet model, without executing code in it",
        _import,
        "tercet.cli.settings:ImportSettings",
    ),
    "export": Command(
        "write a trained model for transformers, sentence-transformers, open_clip or ONNX, with a model card",
        _export,
        "tercet.cli.settings:ExportSettings",
    ),
    "list": Command(
        "print the names that commands take: objectives, models, recipes, formats, metrics, encoders, ...",
        _list,
        "tercet.cli.list:ListSettings",
    ),
    "completion": Command(
        "print a script that completes commands, settings and names in bash, zsh or fish",
        _completion,
        "tercet.cli.completion:CompletionSettings",
    ),
}


def _command(name: str) -> Command:
    if name not in COMMANDS:
        raise ValueError(f"unknown command{suggest(name, COMMANDS)}; known: {', '.join(COMMANDS)}")
    return COMMANDS[name]


def _help() -> str:
    rows = "\n".join(f"  {name:<10} {command.help}" for name, command in COMMANDS.items())
    return (
        "tercet: train, compare and dissect objectives for image-text retrieval\n\n"
        f"usage: tercet COMMAND [settings]\n\n{rows}\n\n"
        "tercet COMMAND --help lists the settings of a command. tercet --version prints the version."
    )


if __name__ == "__main__":
    main()
