"""Write src/tercet/api.py: the signatures of `tercet.train`, `tercet.compare` and `tercet.fit` from their settings.

Run it after a change to a setting: `python tools/make_api.py`. tests/test_api.py fails until then.
"""

import ast
import inspect
import re
import textwrap
from dataclasses import MISSING, Field, fields
from itertools import pairwise
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from tercet.comparison.settings import COMMAND_LINE_ONLY, CompareSettings
from tercet.fitting.settings import FitSettings
from tercet.training.settings import TrainSettings

TARGET = Path(__file__).parents[1] / "src" / "tercet" / "api.py"
WIDTH = 120
# What Python callers may give besides text.
TYPES = {
    "data": "DataLike",
    "objective": "ObjectiveLike",
    "warmup_objective": "ObjectiveLike | None",
    "objectives": "ObjectiveLike | Sequence[ObjectiveLike]",
    "models": "str | Sequence[str]",
    "protocols": "str | Sequence[str]",
}
DOCS = {
    "data": "A path, scenes, an opened dataset, a DataFrame, a Hugging Face dataset or (image, caption) pairs.",
    "objective": "Objective by name, as file.py:function, or a function, a class or an object of `tercet.objectives`.",
    "objectives": "Objectives, each as in `tercet.train`, or all; settings may follow: nt-xent:temperature=0.05.",
    "sweep": 'Training settings to sweep, as a full grid over all values: {"batch_size": [64, 128]}.',
    "train": 'Other settings of `tercet.train`, for all runs: {"batch_size": 64, "learning_rate": 3e-4}.',
    "trust": "Python files that may be run although only config or init_from names them.",
}

HEADER = '''"""`tercet.train`, `tercet.compare` and `tercet.fit`: commands as functions, every setting in the signature.

Written by tools/make_api.py from the settings of the commands: do not edit.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import wraps
from importlib import import_module
from inspect import Signature, signature
from pathlib import Path
from re import sub
from typing import TYPE_CHECKING, Any, Literal, ParamSpec, TypeVar

from tercet.data.formats.from_python import DataLike
from tercet.objectives.registry import ObjectiveLike

if TYPE_CHECKING:
    from tercet.comparison.compare import Comparison
    from tercet.fitting.run_fit import Fitted
    from tercet.training.trained import Trained

P = ParamSpec("P")
T = TypeVar("T")


def only_given(run: str) -> Callable[[Callable[P, T]], Callable[P, T]]:
    """Call `run`, module:name, with the arguments that the caller gave: others come from `config` or a recipe."""
    module, _, name = run.partition(":")

    def decorate(declared: Callable[P, T]) -> Callable[P, T]:
        @wraps(declared)
        def call(*args: P.args, **kwargs: P.kwargs) -> T:
            known = {name: value for name, value in kwargs.items() if name in shown.parameters}
            given = {**shown.bind(*args, **known).arguments, **kwargs}  # `run` suggests a name for an unknown one
            result: T = getattr(import_module(module), name)(given)
            return result

        plain = signature(declared)
        shown = _LongSignature(list(plain.parameters.values()), return_annotation=plain.return_annotation)
        call.__signature__ = shown  # type: ignore[attr-defined]
        return call

    return decorate


class _LongSignature(Signature):
    """One parameter per line in `help()`."""

    def __str__(self) -> str:
        first, *others = self.parameters.values()
        lines = ["(", f"    {first},", "    *,", *(f"    {parameter}," for parameter in others)]
        text = "\\n".join([*lines, f") -> {self.return_annotation}"])
        return sub(r"(?:\\w+\\.)+(?=[A-Z])", "", text)  # types without their modules
'''


def field_docs(settings: type) -> dict[str, str]:
    """The text after each field."""
    body = ast.parse(textwrap.dedent(inspect.getsource(settings))).body[0].body  # type: ignore[attr-defined]
    docs = {}
    for node, following in pairwise(body):
        if isinstance(node, ast.AnnAssign) and isinstance(following, ast.Expr):
            docs[node.target.id] = " ".join(ast.literal_eval(following.value).split())  # type: ignore[union-attr]
    return docs


def one_line(text: str) -> str:
    """The first sentence, and what None means, with settings written as in Python."""
    first, *others = re.split(r"(?<=[^.]\.)\s(?=[A-Z])", text)
    line = " ".join([first, *(sentence for sentence in others if sentence.startswith("None:"))])
    line = re.sub(r"--no-([a-z][a-z-]*)", r"\1=False", line)
    line = re.sub(r"--([a-z][a-z-]*)", lambda match: match[1].replace("-", "_"), line)
    return re.sub(r"(for example|such as) (\w+)=([\d.]+\d)", r'\1 {"\2": \3}', line)


def type_text(declared: Any) -> str:
    if get_origin(declared) in (Union, UnionType):
        return " | ".join(dict.fromkeys(type_text(part) for part in get_args(declared)))
    if get_origin(declared) is Literal:
        return f"Literal[{', '.join(quoted(value) for value in get_args(declared))}]"
    if get_origin(declared) is tuple:
        return f"Sequence[{type_text(get_args(declared)[0])}]"
    if get_origin(declared) is dict:
        return "Mapping[str, Any]"
    return {Path: "str | Path", NoneType: "None"}.get(declared) or declared.__name__


def quoted(value: Any) -> str:
    """Source text of a value, with the quotation marks of the house."""
    if isinstance(value, tuple):
        return f"({', '.join(map(quoted, value))}{',' if len(value) == 1 else ''})"
    return f'"{value}"' if isinstance(value, (str, Path)) else repr(value)


def default_text(field: Field[Any]) -> str:
    return quoted(field.default if field.default is not MISSING else field.default_factory())  # type: ignore[misc]


def parameter(start: str, default: str, value: Any) -> list[str]:
    """The lines of one parameter, as the formatter breaks them."""
    if len(start + default) < WIDTH:
        return [f"{start}{default},"]
    return [f"{start}(", *(f"        {quoted(item)}," for item in value), "    ),"]


def function(name: str, settings: type, run: str, returns: str, lead: str) -> str:
    """The source of one function."""
    types, docs = get_type_hints(settings), field_docs(settings)
    parameters, lines = [], []
    for field in fields(settings):
        if field.name in COMMAND_LINE_ONLY:
            continue
        declared = TYPES.get(field.name) or type_text(types[field.name])
        parameters += parameter(f"    {field.name}: {declared} = ", default_text(field), field.default)
        kind = re.sub(r"Literal\[(.*?)\]", lambda match: match[1].replace('"', "").replace(", ", " | "), declared)
        text = f"{field.name} ({kind}, default {default_text(field)}): "
        text += DOCS.get(field.name) or one_line(docs[field.name])
        lines += textwrap.wrap(text, WIDTH, initial_indent=" " * 8, subsequent_indent=" " * 12, break_on_hyphens=False)
    summary = inspect.getdoc(settings) or ""
    parameters.insert(1, "    *,")
    return "\n".join(
        [
            f'@only_given("{run}")',
            f"def {name}(",
            *parameters,
            f') -> "{returns}":',
            f'    """{summary.splitlines()[0]}',
            "",
            *textwrap.wrap(lead, WIDTH, initial_indent="    ", subsequent_indent="    "),
            "",
            "    Args:",
            *lines,
            '    """',
            '    raise AssertionError("`only_given` calls another function in its place")',
            "",
        ]
    )


def make() -> str:
    """The content of src/tercet/api.py."""
    train = function(
        "train",
        TrainSettings,
        "tercet.training.train:train_with",
        "Trained",
        "`tercet train` as a function; returns the finished run. A setting that is not given has the value of the file "
        "`config`, else that of the recipe of `model`, else the default shown here.",
    )
    compare = function(
        "compare",
        CompareSettings,
        "tercet.comparison.compare:compare_with",
        "Comparison",
        "`tercet compare` as a function; returns tables, tests and a summary, and `.save()` writes the report.",
    )
    fit = function(
        "fit",
        FitSettings,
        "tercet.fitting.run_fit:fit_with",
        "Fitted",
        "`tercet fit` as a function; returns the model, its metrics, the comparison and the index.",
    )
    return f"{HEADER}\n\n{train}\n\n{compare}\n\n{fit}"


if __name__ == "__main__":
    TARGET.write_text(make(), encoding="utf-8")
    print(f"wrote {TARGET}")
