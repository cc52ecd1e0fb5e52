"""Captions to lower-case words, the way the VSE++ lineage does it with NLTK, in one scan and without a download.

Equal to `nltk.word_tokenize(caption.lower(), preserve_line=True)` on all captions of Flickr8k. By design it differs in:

- The end of a sentence inside a caption. NLTK, told that the text is one line, leaves that full stop on its word
  ("runs. the" gives `runs.`). The lineage let NLTK's sentence splitter take it off, and so does this, except after
  abbreviations (below), single letters and numbers.
- A comma or colon right after another: both stand alone here, while NLTK leaves the second on what follows.
- Oddities: three or more backticks in a row; gonna, 'tis and their like glued to another sign; a single quotation
  mark right after a sign that is no letter.
"""

import re

# What keeps its full stop in mid-caption, without it.
ABBREVIATIONS = frozenset(
    """mr mrs ms dr st jr sr vs etc no ft oz lb lbs mt ave blvd dept inc co corp prof rev gen sgt capt lt col gov approx
    u.s u.k u.s.a a.m p.m e.g i.e d.c l.a n.y""".split()  # noqa: SIM905 - a page of quotes reads worse
)
_NO_SENTENCE_END = re.compile(r"[^\W\d_]|[\d.,:-]+|(?:[a-z]\.)+[a-z]")  # an initial, a number, u.s.a

_ALONE = r"\[\](){}<>;@#$%&?!*«“‘„»”’‒–—―"
_PIECES = re.compile(
    rf"""
      \.{{2,}}                 # dots in a row
    | --                       # a dash typed as two
    | [{_ALONE}]
    | `+
    | "|''
    | [:,](?!\d)               # but not within 1,000 or 3:15
    | (?: (?!\.\.|--|'')[^\s{_ALONE}`":,] | [:,](?=\d) )+
    """,
    re.VERBOSE,
)
# A last full stop, perhaps within quotation marks or brackets that close.
_LAST_STOP = re.compile(r"(?<!\.)\.(?=(?:[\])}>'»”’\s]|(?<![\s([{<])\")*\Z)")
_CLOSING = re.compile(r"[\])}>\"'»”’]*(?:\s|\Z)")
_OPENING_QUOTE = re.compile(r"'(?!(?:re|ve|ll|[mtsdn])\b)(?=\w)")
_ENDING = re.compile(r"(?<=[^'])(?:'(?:ll|re|ve|[smd])?|n't)\Z")
_TWO_WORDS = {"cannot": 3, "gonna": 3, "gotta": 3, "gimme": 3, "lemme": 3, "wanna": 3, "d'ye": 1, "more'n": 4}


def tokenize(caption: str) -> list[str]:
    """
    >>> tokenize("A dog's ball, isn't it red? The dog runs. It barks.")
    ['a', 'dog', "'s", 'ball', ',', 'is', "n't", 'it', 'red', '?', 'the', 'dog', 'runs', '.', 'it', 'barks', '.']
    """
    caption = caption.lower()
    last = _LAST_STOP.search(caption)
    if last is None:
        return _scan(caption, 0, len(caption))
    return [*_scan(caption, 0, last.start()), ".", *_scan(caption, last.end(), len(caption))]


def _scan(caption: str, start: int, end: int) -> list[str]:
    words: list[str] = []
    for piece in _PIECES.finditer(caption, start, end):
        text = piece.group()
        if text.isalnum() and text not in _TWO_WORDS:
            words.append(text)
        elif text in ('"', "''"):
            words.append("``" if _opens(caption, piece.start(), text) else "''")
        else:
            words += _parts(text, ends_here=_CLOSING.match(caption, piece.end()) is not None)
    return words


def _opens(caption: str, start: int, quote: str) -> bool:
    """A quotation mark opens after a space, a bracket or another that opens, and at the beginning."""
    if start == 0 or (start == 1 and caption[0] == '"'):
        return start > 0 or quote == '"'
    return caption[start - 1] in " ([{<«“‘„`"


def _parts(text: str, *, ends_here: bool) -> list[str]:
    """A word and what hangs on it."""
    before: list[str] = []
    after: list[str] = []
    if _OPENING_QUOTE.match(text):
        before, text = ["'"], text[1:]
    if ends_here and len(text) > 1 and text[-1] == "." and not _keeps_stop(text[:-1]):
        text, after = text[:-1], ["."]
    ending = _ENDING.search(text)
    if ending is not None:
        text, after = text[: ending.start()], [ending.group(), *after]
    at = _TWO_WORDS.get(text)
    return [*before, *([text[:at], text[at:]] if at else [text]), *after]


def _keeps_stop(word: str) -> bool:
    return word in ABBREVIATIONS or _NO_SENTENCE_END.fullmatch(word) is not None
