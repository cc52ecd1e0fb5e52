"""Objects given from Python in place of a name: a function as objective, a DataFrame as data.

Settings are text: they are written to run folders and decide which runs are the same. An object therefore gets a name,
`python:NAME:CHECKSUM`, by which this process finds it again. The checksum of a function or class is that of its source
and of everything from outside that it uses, so that the same code given again continues the same run.
"""

import dis
import functools
import hashlib
import inspect
import sys
import sysconfig
import textwrap
import types
from collections.abc import Callable, Iterator, Mapping
from enum import Enum
from pathlib import PurePath
from typing import Any

from tercet.names import PREFIX

SIMPLE = (bool, int, float, complex, str, bytes, type(None), type(...), range, slice, PurePath, Enum)
# Attributes that Python or a decorator adds to a class; what they hold follows from the rest.
GENERATED = {
    "__doc__",
    "__module__",
    "__dict__",
    "__weakref__",
    "__abstractmethods__",
    "__firstlineno__",
    "_abc_impl",
} | {
    f"__{name}__"
    for name in ("match_args", "static_attributes", "annotations", "qualname", "parameters", "orig_bases", "hash")
}

_OBJECTS: dict[str, Any] = {}
_CODE: dict[str, str] = {}


def register(name: str, checksum: str, given: Any, code: str = "") -> str:
    """Remember an object; returns its name in settings. `code` is the text that the checksum is of, for the record."""
    full_name = full_name_of(name, checksum)
    _OBJECTS[full_name], _CODE[full_name] = given, code
    return full_name


def full_name_of(name: str, checksum: str) -> str:
    return f"{PREFIX}{name}:{checksum[:12]}"


def register_code(name: str, given: Any) -> str:
    """Remember a function, a class or an object with methods; raises `ValueError` if its source is not available."""
    code = code_of(name, given)
    return register(name, hashlib.sha256(code.encode()).hexdigest(), given, code)


def code_in_memory(name: str) -> str:
    """The text that the checksum in this name is of."""
    return _CODE[name]


def find_in_memory(name: str, remedy: str) -> Any:
    """The object of this name; `ValueError` with the remedy if it was not given in this process, or was edited."""
    if name not in _OBJECTS:
        raise ValueError(f"{name} was given from Python and is not known in this process: {remedy}")
    return _OBJECTS[name]


def code_of(name: str, given: Any) -> str:
    """Source of a function, class or object, followed by every value and function from outside that it uses."""
    return "\n".join(_Describer(name).describe(given, name))


class _Describer:
    """Yields lines that are equal if and only if the code and the values it uses are."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._seen: dict[int, Any] = {}  # by id; holds the objects, so that no id is used twice

    def describe(self, value: Any, label: str) -> Iterator[str]:
        if isinstance(value, SIMPLE):
            yield f"{label} = {value!r}"
        elif isinstance(value, types.ModuleType) or _is_library(value):
            yield f"{label} = {_qualified_name(value)}"
        elif id(value) in self._seen:
            yield f"{label} = as above"
        else:
            self._seen[id(value)] = value
            yield from self._describe_compound(value, label)

    def _describe_compound(self, value: Any, label: str) -> Iterator[str]:
        if isinstance(value, types.FunctionType):
            yield from self._function(value, label)
        elif isinstance(value, type):
            yield from self._class(value, label)
        elif isinstance(value, Mapping):
            for key, item in value.items():
                yield from self.describe(item, f"{label}[{key!r}]")
        elif isinstance(value, (list, tuple, set, frozenset)):
            items = sorted(value, key=repr) if isinstance(value, (set, frozenset)) else value
            yield f"{label}: {type(value).__name__} of {len(value)}"
            for position, item in enumerate(items):
                yield from self.describe(item, f"{label}[{position}]")
        elif isinstance(value, functools.partial):
            yield from self.describe((value.func, value.args, value.keywords), label)
        elif isinstance(value, types.MethodType):
            yield from self.describe((value.__func__, value.__self__), label)
        else:
            yield from self._instance(value, label)

    def _instance(self, value: Any, label: str) -> Iterator[str]:
        kind = type(value)
        if callable(getattr(value, "tolist", None)) and hasattr(value, "dtype"):  # a tensor or an array
            yield f"{label} = {kind.__name__} {value.dtype} {value.tolist()}"
        elif kind.__name__ in ("dtype", "device", "Size"):
            yield f"{label} = {value!r}"
        elif hasattr(value, "__dict__"):
            yield from self.describe(kind, f"type of {label}")
            for name, item in vars(value).items():
                yield from self.describe(item, f"{label}.{name}")
        else:
            raise ValueError(
                f"{self._name} uses {label}, a {kind.__name__}, whose content cannot be compared between runs: use a "
                f"keyword parameter with a number, text or None, or write {self._name} to a file and give file.py:name"
            )

    def _function(self, function: types.FunctionType, label: str) -> Iterator[str]:
        yield f"{label} = {self._source(function)}"
        outside = _globals_of(function) | _closure_of(function)
        for name, value in sorted(outside.items()):
            yield from self.describe(value, name)
        defaults = (function.__defaults__ or (), function.__kwdefaults__ or {})
        yield from self.describe(defaults, f"defaults of {label}")

    def _source(self, function: types.FunctionType) -> str:
        try:
            if function.__name__ == "<lambda>":
                return _lambda_source(function)
            return textwrap.dedent(inspect.getsource(function.__code__)).strip()
        except (OSError, TypeError, SyntaxError) as error:
            raise ValueError(
                f"the source of {self._name} is not available, and a run is identified by it: define it in a notebook "
                "cell or a script, or give it as file.py:name"
            ) from error

    def _class(self, kind: type, label: str) -> Iterator[str]:
        yield f"{label} = class {kind.__qualname__}"
        for base in kind.__bases__:
            yield from self.describe(base, f"base of {label}")
        for name, value in sorted(vars(kind).items()):
            if name in GENERATED or name.startswith(("__dataclass", "__annotat")):
                continue
            for part in _functions_in(value):
                if not isinstance(part, types.FunctionType) or not part.__code__.co_filename.startswith("<string>"):
                    yield from self.describe(part, f"{label}.{name}")


def _functions_in(value: Any) -> Iterator[Any]:
    """Functions inside a descriptor of a class, or the value itself."""
    if isinstance(value, (staticmethod, classmethod)):
        yield value.__func__
    elif isinstance(value, property):
        yield from (accessor for accessor in (value.fget, value.fset) if accessor is not None)
    elif isinstance(value, functools.cached_property):
        yield value.func
    elif not isinstance(value, (types.MemberDescriptorType, types.GetSetDescriptorType)):
        yield value


def _globals_of(function: types.FunctionType) -> dict[str, Any]:
    names = {
        instruction.argval
        for code in _codes(function.__code__)
        for instruction in dis.get_instructions(code)
        if instruction.opname in ("LOAD_GLOBAL", "LOAD_NAME")
    }
    return {name: function.__globals__[name] for name in names if name in function.__globals__}


def _codes(code: types.CodeType) -> Iterator[types.CodeType]:
    """A code object and those of the functions inside it."""
    yield code
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _codes(constant)


def _closure_of(function: types.FunctionType) -> dict[str, Any]:
    values = {}
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        try:
            values[name] = cell.cell_contents
        except ValueError:  # a variable that has no value yet
            values[name] = None
    return values


def _lambda_source(function: types.FunctionType) -> str:
    """The expression alone: what is beside it on the line does not count."""
    import ast

    lines, _ = inspect.findsource(function.__code__)
    found = [
        node
        for node in ast.walk(ast.parse("".join(lines)))
        if isinstance(node, ast.Lambda) and node.lineno == function.__code__.co_firstlineno
    ]
    if len(found) != 1:
        raise OSError(f"{len(found)} lambdas on that line")
    return ast.unparse(found[0])


def _is_library(value: Any) -> bool:
    """Whether a function or class is of Python or of an installed package: its name says what it is."""
    if isinstance(value, (types.BuiltinFunctionType, types.MethodDescriptorType, types.WrapperDescriptorType)):
        return True
    if not isinstance(value, (types.FunctionType, type)):
        return not hasattr(value, "__dict__") and callable(value)
    module = value.__module__ or ""
    root, file = module.partition(".")[0], getattr(sys.modules.get(module), "__file__", None)
    if root in sys.stdlib_module_names - {"__main__"} or root == "tercet":
        return True
    places = (sysconfig.get_path("stdlib"), sysconfig.get_path("purelib"), sysconfig.get_path("platlib"))
    return file is not None and ("-packages" in file or file.startswith(places))


def _qualified_name(value: Any) -> str:
    name = getattr(value, "__qualname__", None) or getattr(value, "__name__", None) or repr(value)
    return name if isinstance(value, types.ModuleType) else f"{getattr(value, '__module__', None)}.{name}"


def name_of(function: Callable[..., Any]) -> str:
    """The name of a function, also behind functools.partial; that of its class for an object."""
    inner = getattr(function, "func", function)
    return getattr(inner, "__name__", type(inner).__name__)
