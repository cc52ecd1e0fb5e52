"""Types and shapes of every function of the package, checked at each call.

jaxtyping's own decorator binds the arguments and checks them twice, before the call and together with what it returns,
for the sake of its messages. The suite calls small functions a million times: this one checks everything once.
"""

import dataclasses
import functools
import types
from collections.abc import Callable
from typing import Any, get_args, get_type_hints

import jaxtyping
from beartype import BeartypeConf, beartype

# A wrong argument is a TypeError, which is what plain code would raise where it cannot use the value.
_CHECKER = beartype(conf=BeartypeConf(violation_type=TypeError))


def install() -> None:
    """For modules of the package imported from here on: jaxtyping's import hook decorates with what is put here."""
    jaxtyping.jaxtyped = checked
    jaxtyping.install_import_hook("tercet", "beartype.beartype")


def checked(*, typechecker: Callable) -> Callable:
    """Decorator of a function, or of the constructor of a dataclass."""

    def decorate(subject):
        if not isinstance(subject, type):
            return _checked_function(subject)
        if dataclasses.is_dataclass(subject) and "__init__" in vars(subject):
            subject.__init__ = _checked_function(subject.__init__)
        return subject

    return decorate


def _checked_function(function):
    if not function.__annotations__:
        return function
    check = functools.cache(
        lambda: _check_of(function)
    )  # at the first call: most functions are not called by a process

    @functools.wraps(function)
    def checked_or_not(*args, **kwargs):
        return (function if jaxtyping.config.jaxtyping_disable else check())(*args, **kwargs)

    return checked_or_not


def _check_of(function):
    hints = {name: _resolved(hint, function) for name, hint in function.__annotations__.items()}
    check = _CHECKER(_annotated(function, hints))
    return _with_own_axes(check) if any(_has_shape(hint) for hint in hints.values()) else check


def _with_own_axes(check):
    """The axes of a call have nothing to do with those of its caller."""

    def in_context(*args, **kwargs):
        with _CONTEXT:
            return check(*args, **kwargs)

    return in_context


_CONTEXT = jaxtyping.jaxtyped("context")  # holds nothing itself


def _resolved(hint, function):
    """The type that a string means, or Any for names that only type checkers import."""

    def holder(value: hint): ...

    try:
        return get_type_hints(holder, function.__globals__, include_extras=True)["value"]
    except (NameError, AttributeError):
        return Any


def _annotated(function, hints):
    copy = types.FunctionType(
        function.__code__, function.__globals__, function.__name__, function.__defaults__, function.__closure__
    )
    copy = functools.update_wrapper(copy, function)
    del copy.__wrapped__
    copy.__kwdefaults__ = function.__kwdefaults__
    copy.__annotations__ = hints
    return copy


def _has_shape(hint) -> bool:
    is_array = isinstance(hint, type) and issubclass(hint, jaxtyping.AbstractArray)
    return is_array or any(_has_shape(part) for part in get_args(hint))
