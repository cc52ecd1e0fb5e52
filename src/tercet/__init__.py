"""Tercet trains, compares and dissects objectives for image-text retrieval."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tercet.objectives import objective

__all__ = ["objective"]

# Public name -> module. Looked up on first use, so that `import tercet` and `tercet --help` need no torch.
_PUBLIC = {"objective": "tercet.objectives"}


def __getattr__(name: str) -> Any:
    if name not in _PUBLIC:
        raise AttributeError(f"module 'tercet' has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(_PUBLIC[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
