"""The frame of a page: a heading, what it says in a sentence, links to its sections, and the sections."""

from collections.abc import Sequence
from html import escape
from importlib.resources import files
from typing import NamedTuple

from tercet.pages.figure import Figure


class Section(NamedTuple):
    mark: str
    """Its id: lower case, no spaces."""
    heading: str
    content: str
    """HTML."""


def page(title: str, heading: str, lead: str, sections: Sequence[Section]) -> str:
    """`title`, `heading` and `lead` are plain text."""
    links = "".join(f'<li><a href="#{each.mark}">{each.heading}</a></li>' for each in sections)
    body = "".join(f'<section id="{each.mark}"><h2>{each.heading}</h2>{each.content}</section>' for each in sections)
    style = (files(__package__) / "page.css").read_text(encoding="utf-8")
    return (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{escape(title)}</title>'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f'<link rel="icon" href="data:,"><style>{style}</style></head><body>'
        f'<a class="skip" href="#{sections[0].mark if sections else ""}">To the results</a>'
        f'<header><h1>{escape(heading)}</h1><p class="verdict">{escape(lead)}</p></header>'
        f'<nav aria-label="Sections"><ul>{links}</ul></nav><main>{body}</main></body></html>\n'
    )


def figure_block(figure: Figure) -> str:
    """The drawing in the page's own colours; links to its files, which lie in `figures/` beside the page."""
    return (
        f"<figure><h3>{escape(figure.title)}</h3>{figure.svg}<figcaption>{escape(figure.caption)} "
        f'<a href="figures/{figure.name}.png">PNG</a> <a href="figures/{figure.name}.svg">SVG</a></figcaption></figure>'
    )


def scrolling(label: str, content: str) -> str:
    """Wide content that scrolls by itself, also by keyboard."""
    said = escape(label, quote=True)
    return f'<p class="note">{said}</p><div class="wide" role="region" tabindex="0" aria-label="{said}">{content}</div>'
