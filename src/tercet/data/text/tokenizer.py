"""Word tokenizer of VSE++ and its successors (NLTK's, without a download), and caption normalization of X-VLM.

`tokenize` equals `nltk.word_tokenize(caption.lower(), preserve_line=True)` on all captions of Flickr8k. By design it
differs in:

- A sentence that ends inside a caption. With preserve_line, NLTK leaves that full stop on its word ("runs. the" gives
  `runs.`). VSE++ used NLTK's sentence splitter, which separates it, and so does this, except after abbreviations
  (below), single letters and numbers.
- A comma or colon right after another: both are tokens of their own here; NLTK leaves the second on the next word.
- Rare cases: three or more backticks in a row; contractions such as gonna and 'tis next to punctuation; a single
  quotation mark right after a character that is not a letter.
"""

import re

# Words that keep their full stop inside a caption, listed without it.
ABBREVIATIONS = frozenset(
    """mr mrs ms dr st jr sr vs etc no ft oz lb lbs mt ave blvd dept inc co corp prof rev gen sgt capt lt col gov approx
    u.s u.k u.s.a a.m p.m e.g i.e d.c l.a n.y""".split()  # noqa: SIM905 - a list of quoted strings reads worse
)
MAX_WORDS, MAX_TOKENS = 30, 40  # of X-VLM
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
# The last full stop, possibly before closing quotation marks or brackets.
_LAST_STOP = re.compile(r"(?<!\.)\.(?=(?:[\])}>'»”’\s]|(?<![\s([{<])\")*\Z)")
_CLOSING = re.compile(r"[\])}>\"'»”’]*(?:\s|\Z)")
_OPENING_QUOTE = re.compile(r"'(?!(?:re|ve|ll|[mtsdn])\b)(?=\w)")
_ENDING = re.compile(r"(?<=[^'])(?:'(?:ll|re|ve|[smd])?|n't)\Z")
_TWO_WORDS = {"cannot": 3, "gonna": 3, "gotta": 3, "gimme": 3, "lemme": 3, "wanna": 3, "d'ye": 1, "more'n": 4}


def tokenize(caption: str) -> list[str]:
    """Split a caption into lower-case words.

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
            words += _split_word(text, ends_here=_CLOSING.match(caption, piece.end()) is not None)
    return words


def _opens(caption: str, start: int, quote: str) -> bool:
    """A quotation mark opens at the start, after a space, after a bracket or after another opening quotation mark."""
    if start == 0 or (start == 1 and caption[0] == '"'):
        return start > 0 or quote == '"'
    return caption[start - 1] in " ([{<«“‘„`"


def _split_word(text: str, *, ends_here: bool) -> list[str]:
    """Split quotation marks, contractions and a final full stop off a word."""
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


def normalize_caption(text: str, max_words: int = MAX_WORDS) -> str:
    """Lower case, without punctuation, cut to `max_words` words, at most 30.

    >>> normalize_caption("A dog's well-worn ball: red/blue!")
    'a dogs well worn ball red blue'
    """
    joined = re.sub(r"[-/]", " ", re.sub(r"[,.'!?\"()*#:;~]", "", text.lower()))
    return " ".join(joined.split()[: min(max_words, MAX_WORDS)])
