"""Captions as X-VLM reads them."""

import re

LONGEST_IN_WORDS, LONGEST_IN_TOKENS = 30, 40


def cleaned(text: str, longest: int = LONGEST_IN_WORDS) -> str:
    """Lower case, no punctuation, at most 30 words, or fewer.

    >>> cleaned("A dog's well-worn ball: red/blue!")
    'a dogs well worn ball red blue'
    """
    joined = re.sub(r"[-/]", " ", re.sub(r"[,.'!?\"()*#:;~]", "", text.lower()))
    return " ".join(joined.split()[: min(longest, LONGEST_IN_WORDS)])
