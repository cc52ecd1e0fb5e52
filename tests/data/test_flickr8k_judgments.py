"""Human judgments of pairs: both files, the precedence of experts, and bad lines."""

import numpy as np
import pytest

from tercet.data.dataset import Split
from tercet.data.flickr8k_judgments import CROWD, EXPERTS, read_judgments

SPLIT = Split(
    image_names=("a.jpg", "b.jpg", "c.jpg"),
    texts=("a0", "a1", "b0", "b1", "c0", "c1"),
    owners=np.array([0, 0, 1, 1, 2, 2]),
)


def write_judgments(folder, crowd=(), experts=()):
    for name, rows in ((CROWD, crowd), (EXPERTS, experts)):
        if rows:
            (folder / name).write_text("".join("\t".join(map(str, row)) + "\n" for row in rows))
    return folder


def test_experts_take_precedence_over_the_crowd(tmp_path):
    crowd = [("a.jpg", "b.jpg#1", 1, 3, 0), ("b.jpg", "a.jpg#0", 0.5, 2, 2), ("c.jpg", "b.jpg#1", 0.67, 2, 1)]
    experts = [("a.jpg", "b.jpg#1", 1, 2, 2), ("c.jpg", "a.jpg#0", 3, 3, 3), ("gone.jpg", "a.jpg#0", 4, 4, 4)]
    judgments = read_judgments(write_judgments(tmp_path, crowd, experts), SPLIT)
    assert judgments.captions.tolist() == [0, 3]
    assert judgments.verdicts.tolist() == [[-1, 0], [0, -1], [1, 1]]  # a tied vote is no


def test_image_names_are_compared_without_folder_and_suffix(tmp_path):
    renamed = Split(("photos/a", "b", "c"), SPLIT.texts, SPLIT.owners)
    judgments = read_judgments(write_judgments(tmp_path, [("a.jpg", "c.jpg#1", 1, 3, 0)]), renamed)
    assert judgments.captions.tolist() == [5]
    assert judgments.verdicts[0].tolist() == [1]


@pytest.mark.parametrize(
    ("row", "message"),
    [
        (("a.jpg", "b.jpg#1", 1, 3), "line 2: expected an image, a caption as image#number and three numbers"),
        (("a.jpg", "b.jpg", 1, 3, 0), "line 2: expected"),
        (("a.jpg", "b.jpg#1", "x", 3, 0), "line 2: expected"),
    ],
)
def test_a_bad_line_is_named(tmp_path, row, message):
    with pytest.raises(ValueError, match=message):
        read_judgments(write_judgments(tmp_path, [("a.jpg", "b.jpg#1", 1, 3, 0), row]), SPLIT)


def test_no_files_and_other_images(tmp_path):
    with pytest.raises(ValueError, match="no judgments found"):
        read_judgments(tmp_path, SPLIT)
    with pytest.raises(ValueError, match="none of the judged pairs are in this split"):
        read_judgments(write_judgments(tmp_path, [("x.jpg", "y.jpg#1", 1, 3, 0)]), SPLIT)
