"""People's word on pairs: both files, who counts where they differ, and what is wrong in a line."""

import numpy as np
import pytest

from tercet.data.dataset import Split
from tercet.data.judgements import CROWD, EXPERTS, read_judgements

SPLIT = Split(
    image_names=("a.jpg", "b.jpg", "c.jpg"),
    texts=("a0", "a1", "b0", "b1", "c0", "c1"),
    owners=np.array([0, 0, 1, 1, 2, 2]),
)


def written(folder, crowd=(), experts=()):
    for name, rows in ((CROWD, crowd), (EXPERTS, experts)):
        if rows:
            (folder / name).write_text("".join("\t".join(map(str, row)) + "\n" for row in rows))
    return folder


def test_experts_count_where_both_have_looked(tmp_path):
    crowd = [("a.jpg", "b.jpg#1", 1, 3, 0), ("b.jpg", "a.jpg#0", 0.5, 2, 2), ("c.jpg", "b.jpg#1", 0.67, 2, 1)]
    experts = [("a.jpg", "b.jpg#1", 1, 2, 2), ("c.jpg", "a.jpg#0", 3, 3, 3), ("gone.jpg", "a.jpg#0", 4, 4, 4)]
    found = read_judgements(written(tmp_path, crowd, experts), SPLIT)
    assert found.captions.tolist() == [0, 3]
    assert found.said.tolist() == [[-1, 0], [0, -1], [1, 1]]  # even votes are no


def test_names_without_an_ending_are_the_same_images(tmp_path):
    renamed = Split(("photos/a", "b", "c"), SPLIT.texts, SPLIT.owners)
    found = read_judgements(written(tmp_path, [("a.jpg", "c.jpg#1", 1, 3, 0)]), renamed)
    assert found.captions.tolist() == [5]
    assert found.said[0].tolist() == [1]


@pytest.mark.parametrize(
    ("row", "message"),
    [
        (("a.jpg", "b.jpg#1", 1, 3), "line 2: expected image, caption as image#number, and three numbers"),
        (("a.jpg", "b.jpg", 1, 3, 0), "line 2: expected"),
        (("a.jpg", "b.jpg#1", "x", 3, 0), "line 2: expected"),
    ],
)
def test_a_bad_line_is_named(tmp_path, row, message):
    with pytest.raises(ValueError, match=message):
        read_judgements(written(tmp_path, [("a.jpg", "b.jpg#1", 1, 3, 0), row]), SPLIT)


def test_no_files_and_other_images(tmp_path):
    with pytest.raises(ValueError, match="no judgements there"):
        read_judgements(tmp_path, SPLIT)
    with pytest.raises(ValueError, match="no judged pair is of the images of this split"):
        read_judgements(written(tmp_path, [("x.jpg", "y.jpg#1", 1, 3, 0)]), SPLIT)
