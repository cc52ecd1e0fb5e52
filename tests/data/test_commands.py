"""`tercet data` and `tercet features` on the command line."""

import json

import numpy as np
import pytest

from tercet.data.dataset import limit_captions
from tercet.data.formats import open_data
from tercet.data.inspect import summarise
from tests.commands import tercet
from tests.data.formats.test_butd import line as butd_line
from tests.data.small_datasets import PLAIN, plain, write_csv, write_folder, write_images, write_karpathy


def test_inspect_prints_a_summary(tmp_path):
    write_images(PLAIN, tmp_path / "images")
    done = tercet("data", "inspect", write_karpathy(PLAIN, tmp_path))
    assert done.returncode == 0, done.stderr
    for text in (
        "train",
        "val",
        "test",
        "1 to 3",
        "a.jpg",
        "ein Hund im Schnee",
        "format: karpathy",
        "captions/image",
        "No errors found",
    ):
        assert text in done.stdout


def test_inspect_lists_all_errors_and_exits_with_1(tmp_path):
    folder = write_folder(PLAIN, tmp_path)
    (folder / "train" / "a.jpg").write_bytes(b"not an image")
    (folder / "train" / "b.txt").unlink()
    done = tercet("data", "inspect", folder)
    assert done.returncode == 1
    assert "2 errors" in done.stdout
    assert "a.jpg: not an image in one of the formats JPEG, PNG" in done.stdout
    assert "no caption file b.txt" in done.stdout


def test_a_summary_finds_duplicates_shared_captions_and_bad_features(tmp_path):
    content = {
        "train": [("a.jpg", ["a dog", "x"]), ("b.jpg", ["a dog", "y"]), ("c.jpg", ["z", "z"])],
        "test": [("d.jpg", ["a dog", "w"]), ("a.jpg", ["u", "v"])],
    }
    write_images(content, tmp_path / "images")
    (tmp_path / "images" / "d.jpg").write_bytes((tmp_path / "images" / "b.jpg").read_bytes())
    summary = summarise(open_data(write_karpathy(content, tmp_path)))
    assert summary.splits["train"].shared_captions == 2
    assert summary.splits["test"].words_per_caption == (1, 1.0, 2)
    assert "train and test share 1 image names" in summary.notes
    assert "train and test share 1 captions" in summary.notes
    assert "train and test share 2 images" in summary.findings  # b is d, and a is a
    assert not summary.errors
    assert len(summary.examples) == 3


def test_a_summary_reads_every_feature(tmp_path):
    folder = tmp_path / "precomp"
    folder.mkdir()
    (folder / "test_caps.txt").write_text("a\nb\nc\nd\n")
    (folder / "test_ids.txt").write_text("x\ny\n")
    features = np.arange(16, dtype=np.float32).reshape(2, 8)
    features[1, 3] = np.inf
    np.save(folder / "test_ims.npy", features)
    assert any("row 1: NaN or infinity" in error for error in summarise(open_data(folder)).errors)
    # A row that differs where rows should be repeated, not among those that are checked when a folder is opened.
    rows = np.arange(100, dtype=np.float32).repeat(2)[:, None].repeat(3, axis=1)
    rows[7] += 0.5
    np.save(folder / "test_ims.npy", rows)
    (folder / "test_caps.txt").write_text("a\n" * 200)
    (folder / "test_ids.txt").write_text("".join(f"{n // 2}\n" for n in range(200)))
    assert any("row 7: differs from the previous row" in error for error in summarise(open_data(folder)).errors)


@pytest.mark.parametrize("repeated", [False, True])
def test_a_skipped_image_causes_no_error_in_the_rows_of_its_neighbours(tmp_path, repeated):
    """The rows of an image without a valid caption are between those of other images."""
    rows = np.arange(3, dtype=np.float32)[:, None].repeat(2, axis=1)
    np.save(tmp_path / "test_ims.npy", rows.repeat(2, axis=0) if repeated else rows)
    (tmp_path / "test_caps.txt").write_text("a\nb\n\n \ne\nf\n")
    (tmp_path / "test_ids.txt").write_text("x\nx\ny\ny\nz\nz\n" if repeated else "x\ny\nz\n")
    data = open_data(tmp_path, skip_bad=True)
    assert data.splits["test"].image_names == ("x", "z")
    assert summarise(data).errors == list(data.skipped)


def test_convert_there_and_back(tmp_path):
    table = write_csv(PLAIN, tmp_path)
    assert tercet("data", "convert", table, tmp_path / "one").returncode == 0
    assert tercet("data", "convert", tmp_path / "one", tmp_path / "two", "--to", "parquet").returncode == 0
    assert plain(open_data(tmp_path / "two")) == PLAIN
    again = tercet("data", "convert", tmp_path / "two", tmp_path / "one", "--to", "parquet")
    assert again.returncode == 2
    assert "nothing is overwritten" in again.stderr


def test_convert_skips_and_lists_only_with_skip_bad(tmp_path):
    (tmp_path / "pairs.csv").write_text("image,caption\na.jpg,a dog\nb.jpg,\n")
    failed = tercet("data", "convert", "pairs.csv", "out", cwd=tmp_path)
    assert failed.returncode == 2
    assert "pairs.csv, line 3, image b.jpg: empty caption" in failed.stderr
    assert not (tmp_path / "out").exists()
    done = tercet("data", "convert", "pairs.csv", "out", "--skip-bad", cwd=tmp_path)
    assert done.returncode == 0
    assert "Skipped 1 invalid items" in done.stderr
    assert "line 3" in done.stderr


def test_line_breaks_that_the_format_cannot_represent_are_reported(tmp_path):
    (tmp_path / "mine_train.json").write_text(json.dumps([{"image": "a.jpg", "caption": ["one\ntwo"]}]))
    done = tercet("data", "convert", "mine_train.json", "out", cwd=tmp_path)
    assert "replaced line breaks by spaces in 1 captions" in done.stdout
    assert open_data(tmp_path / "out").splits["train"].texts == ("one two",)


def test_limit_captions_keeps_the_first_ones():
    limited = limit_captions(open_data("scenes:9"), 2)
    split, full = limited.splits["train"], open_data("scenes:9").splits["train"]
    assert split.texts == tuple(text for row in range(9) for text in full.texts[5 * row : 5 * row + 2])
    assert split.owners.tolist() == [row for row in range(9) for _ in range(2)]
    assert len(split.caption_features) == 18


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["data", "inspect", "nowhere"], "nowhere: no such file or folder"),
        (["data", "convert", "scenes:9", "out", "--captions", "x"], "--captions is only for a BUTD .tsv"),
        (["features", "scenes:9", "out", "--splits", "tset"], "no split 'tset' (did you mean test?)"),
        (
            ["features", "scenes:9", "out", "--image-encoder", "none", "--text-encoder", "none"],
            "nothing to encode",
        ),
    ],
)
def test_mistakes_are_one_line_and_exit_code_2(tmp_path, arguments, message):
    done = tercet(*arguments, cwd=tmp_path)
    assert done.returncode == 2
    assert message in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("command", [["data", "inspect"], ["data", "convert"], ["features"]])
def test_help_lists_the_options(command):
    done = tercet(*command, "--help")
    assert done.returncode == 0
    assert "--images" in done.stdout


@pytest.mark.parametrize("to", ["precomp", "parquet"])
def test_a_conversion_that_is_already_there_is_the_result_and_another_one_is_refused(tmp_path, to):
    """As after a kill between the rename of the folder and the end of the process."""
    command = ("data", "convert", "scenes:9", tmp_path / "out", "--to", to)
    assert "Wrote" in tercet(*command, check=True).stdout
    before = {file.name: file.read_bytes() for file in (tmp_path / "out").iterdir()}
    done = tercet(*command, check=True)
    assert done.stdout == f"{tmp_path / 'out'} already holds this conversion\n"
    assert not done.stderr
    others = (
        ("data", "convert", "scenes:12", tmp_path / "out", "--to", to),
        ("data", "convert", "scenes:9", tmp_path / "out", "--to", "parquet" if to == "precomp" else "precomp"),
        (*command, "--limit-captions", "2"),
        (*command, "--features", "regions"),
    )
    for other in others:
        done = tercet(*other)
        assert (done.returncode, len(done.stderr.splitlines())) == (2, 1)
        assert "already exists and is not the result of this conversion; nothing is overwritten" in done.stderr
    assert {file.name: file.read_bytes() for file in (tmp_path / "out").iterdir()} == before


def test_a_folder_that_was_not_converted_is_not_taken_for_a_conversion(tmp_path):
    (tmp_path / "out").mkdir()
    done = tercet("data", "convert", "scenes:9", tmp_path / "out")
    assert done.returncode == 2
    assert "already exists and is not the result of this conversion" in done.stderr


def test_regions_of_butd_are_part_of_what_identifies_a_conversion(tmp_path):
    content = {"train": [("1.jpg", ["a dog"]), ("2.jpg", ["a cat"])]}
    captions = write_karpathy(content, tmp_path)
    write_images(content, tmp_path / "images")
    regions = tmp_path / "regions.tsv"
    regions.write_text("".join(butd_line(image, np.ones((2, 4)), np.ones((2, 3))) for image in (1, 2)))
    command = ("data", "convert", regions, tmp_path / "out", "--captions", captions)
    tercet(*command, check=True)
    assert "already holds this conversion" in tercet(*command, check=True).stdout
    regions.write_text("".join(butd_line(image, np.ones((2, 4)), np.zeros((2, 3))) for image in (1, 2)))
    assert "not the result of this conversion" in tercet(*command).stderr


def test_inspect_says_on_stderr_why_it_fails(tmp_path):
    folder = write_folder(PLAIN, tmp_path)
    (folder / "train" / "a.jpg").write_bytes(b"not an image")
    assert tercet("data", "inspect", folder).stderr == f"tercet data inspect: 1 error in {folder}\n"
