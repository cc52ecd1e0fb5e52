"""The tokenizer equals NLTK's, except for the differences in its docstring."""

import doctest

from hypothesis import given
from hypothesis import strategies as st
from nltk.tokenize import word_tokenize

from tercet.data.text import tokenizer
from tercet.data.text.tokenizer import tokenize
from tests.examples import examples

PLAIN_PIECES = [
    "dog", "A", "isn't", "dogs'", "'hello", "'s", "he'll", "cannot", "gonna", "1,000", "3:15", "U.S.A", "...", "--",
    "(two", "three)", '"hi"', '" hi "', "“so”", "it’s", "‘a", "?", "!", "&", "#1", "$5", "50%", "*", "black-and-white",
    "well,", "x:", "x:y", "a,b", "é", "naïve", "犬", "3.5", "'90s", "o'clock", "—", "–", "[x]", "{y}", "<b>", "!!",
    "?!", "y'all", "5'", '6"', "@home", ";", "won't", "she'd", "they've", "I'm", "we're", "wanna", ".5", "a/b",
    "T-shirt",
]  # fmt: skip


@examples(600)
@given(
    pieces=st.lists(st.sampled_from(PLAIN_PIECES), min_size=1, max_size=8),
    end=st.sampled_from(["", ".", " .", "!", '."', ".)"]),
)
def test_equal_to_nltk(pieces, end):
    caption = " ".join(pieces) + end
    assert tokenize(caption) == word_tokenize(caption.lower(), preserve_line=True)


@examples(300)
@given(st.text(max_size=40))
def test_any_text_gives_words_without_space_and_loses_no_letter(caption):
    words = tokenize(caption)
    assert all(word and not any(character.isspace() for character in word) for word in words)
    letters = [character for character in caption.lower() if character.isalnum()]
    assert [character for word in words for character in word if character.isalnum()] == letters


def test_a_sentence_that_ends_inside_a_caption():
    assert tokenize("A dog runs. The cat sits.") == ["a", "dog", "runs", ".", "the", "cat", "sits", "."]
    assert word_tokenize("a dog runs. the cat sits.", preserve_line=True) == [
        "a",
        "dog",
        "runs.",
        "the",
        "cat",
        "sits",
        ".",
    ]


def test_abbreviations_keep_their_full_stop():
    assert tokenize("Mr. Smith of the U.S. Army at 3. p.m. today") == [
        "mr.",
        "smith",
        "of",
        "the",
        "u.s.",
        "army",
        "at",
        "3.",
        "p.m.",
        "today",
    ]


def test_the_examples_in_the_docstrings():
    assert doctest.testmod(tokenizer).failed == 0
