"""Near-duplicate captions, and hardest negatives that are near-duplicates."""

import pytest
import torch

from tercet.analysis.near_duplicates import hardest_is_duplicate
from tercet.data.text.word_sets import is_near_duplicate, words_of


@pytest.mark.parametrize(
    ("one", "other", "expected"),
    [
        ("A dog runs.", "a DOG runs", True),
        ("runs a dog", "a dog runs", True),
        ("a dog runs on green grass", "a dog runs on grass", True),  # 5 of 6
        ("a dog runs on grass", "a cat runs on grass", False),  # 4 of 6
        ("a dog", "", False),
        ("", "...", False),
    ],
)
def test_captions_of_nearly_the_same_words(one, other, expected):
    assert is_near_duplicate(words_of(one), words_of(other)) is expected
    assert is_near_duplicate(words_of(other), words_of(one)) is expected


def test_the_hardest_negative_of_both_directions_is_compared_with_the_query():
    captions = [words_of(text) for text in ("a red dog", "a dog, red", "a blue car")]
    image_captions = [[caption] for caption in captions]
    similarity = torch.tensor([[0.9, 0.8, 0.1], [0.2, 0.9, 0.7], [0.3, 0.1, 0.9]])
    duplicates = hardest_is_duplicate(similarity, torch.eye(3, dtype=torch.bool), captions, image_captions)
    # Hardest captions: image 0 -> caption 1 (a duplicate), image 1 -> caption 2, image 2 -> caption 0.
    # Hardest images: caption 0 -> image 2, caption 1 -> image 0 (a duplicate), caption 2 -> image 1.
    assert duplicates.tolist() == [True, False, False, False, True, False]


def test_an_ignored_pair_is_not_a_hardest_negative():
    captions = [words_of(text) for text in ("a red dog", "a dog, red", "a blue car")]
    similarity = torch.tensor([[0.9, 0.8, 0.1], [0.2, 0.9, 0.7], [0.3, 0.1, 0.9]])
    ignored = torch.zeros(3, 3, dtype=torch.bool)
    ignored[0, 1] = True
    positives = torch.eye(3, dtype=torch.bool)
    assert not hardest_is_duplicate(similarity, positives, captions, [[c] for c in captions], ignored).any()


def test_all_captions_of_an_image_count():
    captions = [words_of("something else"), words_of("a blue car")]
    image_captions = [[captions[0], words_of("a car, blue")], [captions[1]]]
    duplicates = hardest_is_duplicate(torch.zeros(2, 2), torch.eye(2, dtype=torch.bool), captions, image_captions)
    assert duplicates.tolist() == [True, False, False, True]
