"""One bit of a finished result is damaged: every reader names the file in one line and computes nothing from it."""

import shutil

import numpy as np
import pytest

import tercet
from tercet import runs
from tercet.cli.main import main
from tercet.comparison.results import read_run
from tercet.data import paired
from tercet.data.formats import open_data
from tercet.data.hard_negatives import open_mined
from tercet.search.index import open_index
from tercet.storage import FORMAT_VERSION, write_manifest
from tercet.training.train import Loop
from tests.checksums import flip_bit, forge, manifest_of, record_again
from tests.search.small_indexes import SCENES, model, shared_index
from tests.search.test_index import MODEL, Embedder, draw, images_in_folder, update_index

DATA = "scenes:60"
SMALL = {"data": DATA, "epochs": 1, "model_settings": {"embed_dim": 8}}


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    return tercet.train(**SMALL, runs=tmp_path_factory.mktemp("runs")).folder


@pytest.fixture
def run(trained, tmp_path):
    return shutil.copytree(trained, tmp_path / "runs" / trained.name)


def one_line(capsys, *arguments):
    """The only line of a command that refuses."""
    capsys.readouterr()
    with pytest.raises(SystemExit) as stopped:
        main([*map(str, arguments)])
    assert stopped.value.code == 2
    printed = capsys.readouterr()
    assert not printed.out
    (line,) = printed.err.splitlines()
    return line


@pytest.mark.parametrize("name", ["weights.safetensors", "config.json"])
@pytest.mark.parametrize("command", ["evaluate", "doctor", "mine"])
def test_a_bit_of_a_model_stops_every_command(run, tmp_path, capsys, name, command):
    position = (run / name).read_bytes().rindex(b"8") if name == "config.json" else -2
    flip_bit(run / name, position)
    out = tmp_path / "out"
    more = () if command == "doctor" else ("--data", DATA)
    assert f"{name} is missing or was changed" in one_line(capsys, command, run, *more, "--out", out)
    assert not out.exists()
    with pytest.raises(ValueError, match=f"{name} is missing or was changed"):
        tercet.load(run)


@pytest.mark.parametrize("name", ["metrics.jsonl", "ranks.npz", "settings.json", "weights.safetensors"])
def test_a_bit_of_a_result_is_not_compared(run, name):
    read_run(run, 0)
    flip_bit(run / name)
    with pytest.raises(ValueError, match=f"{name} is missing or was changed"):
        read_run(run, 0)
    with pytest.raises(ValueError, match=f"{name} is missing or was changed"):
        tercet.train(**SMALL, runs=run.parent)  # a finished run is not returned unread


def test_every_digit_of_the_metrics_counts(run):
    """A digit that became another one is valid JSON."""
    content = (run / "metrics.jsonl").read_bytes()
    last = content[: content.rindex(b"}")].rindex(b"\n") + 1
    digits = [n for n in range(last, len(content)) if chr(content[n]) in "02468"]
    for position in digits[::20]:
        flip_bit(run / "metrics.jsonl", position)
        with pytest.raises(ValueError, match="was changed"):
            runs.read_metrics(run)
        flip_bit(run / "metrics.jsonl", position)
    assert runs.read_metrics(run)["rsum"] >= 0


@pytest.mark.parametrize("size", [0, 100])
def test_a_truncated_file_is_named(run, size):
    for name in ("weights.safetensors", "ranks.npz"):
        content = (run / name).read_bytes()
        (run / name).write_bytes(content[:size])
        with pytest.raises(ValueError, match=f"{name} is missing or was changed"):
            runs.check_run(run)
        (run / name).write_bytes(content)
    runs.check_run(run)


def test_a_finished_run_without_checksums_is_refused(run):
    content = manifest_of(run / runs.MACHINE)
    del content["checksums"]
    write_manifest(run / runs.MACHINE, content)
    for read in (runs.read_final, runs.read_settings, runs.check_run, tercet.load):
        with pytest.raises(ValueError, match=r"machine\.json has no checksum"):
            read(run)


def test_deeply_nested_lines_with_forged_checksums_are_one_line(run):
    (run / "metrics.jsonl").write_bytes(b"[" * 100_000)
    record_again(run / runs.MACHINE)
    with pytest.raises(ValueError, match=r"metrics\.jsonl is damaged"):
        runs.read_lines(run)


def test_damaged_ranks_with_forged_checksums_are_one_line(run):
    """Damage inside a compressed array raises zlib.error in numpy."""
    original, seen = (run / "ranks.npz").read_bytes(), set()
    for position in range(40, len(original), max(1, len(original) // 60)):
        flip_bit(run / "ranks.npz", position, bit=5)
        record_again(run / runs.MACHINE)
        try:
            runs.read_ranks(run)
        except ValueError as error:
            seen.add(type(error.__cause__).__name__)
        (run / "ranks.npz").write_bytes(original)
    assert "error" in seen  # zlib's


def test_a_saved_model(tmp_path):
    model("vsepp").save(tmp_path / "model")
    tercet.load(tmp_path / "model")
    for name in ("weights.safetensors", "vocabulary.json"):
        flip_bit(tmp_path / "model" / name)
        with pytest.raises(ValueError, match=f"{name} is missing or was changed"):
            tercet.load(tmp_path / "model")
        flip_bit(tmp_path / "model" / name)


@pytest.fixture
def index(tmp_path):
    draw(tmp_path / "photos", ["a", "b", "c"])
    update_index(tmp_path / "index", images_in_folder(tmp_path / "photos"), Embedder(), MODEL)
    return tmp_path / "index"


@pytest.mark.parametrize("name", ["vectors.npy", "index.faiss", "items.jsonl"])
def test_a_bit_of_an_index_is_seen_when_it_is_opened_and_updated(index, tmp_path, name):
    open_index(index)
    flip_bit(index / "generation_000001" / name)
    with pytest.raises(ValueError, match=f"{name} is missing or was changed"):
        open_index(index)
    with pytest.raises(ValueError, match=f"{name} is missing or was changed"):
        update_index(index, images_in_folder(tmp_path / "photos"), Embedder(), MODEL)


@pytest.mark.parametrize("missing", ["weights", "model", "kind", "store", "generation", "checksums"])
def test_an_index_manifest_without_a_field_is_one_line(index, missing):
    content = manifest_of(index / "index.json")
    for part in (content, content["model"]):
        part.pop(missing, None)
    write_manifest(index / "index.json", content)
    with pytest.raises(ValueError, match=r"index\.json (is damaged|has no checksums)"):
        open_index(index)


def test_a_generation_outside_the_index_is_refused(index):
    forge(index / "index.json", generation="../elsewhere")
    with pytest.raises(ValueError, match=r"index\.json is damaged"):
        open_index(index)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"\x93NUMPY", "items.jsonl: not index items"),
        (b"[" * 100_000 + b"\n", "items.jsonl, line 1: not an index item"),
    ],
)
def test_forged_items_are_one_line(index, content, message):
    items = index / "generation_000001" / "items.jsonl"
    items.write_bytes(content)
    record_again(index / "index.json", items.parent)
    with pytest.raises(ValueError, match=message):
        open_index(index)


def test_regions_are_checked_row_by_row(tmp_path):
    from tercet.search.indexed_regions import IndexedRegions, RegionWriter

    values = np.random.default_rng(0).standard_normal((5, 3, 4)).astype(np.float32)
    writer = RegionWriter(tmp_path, values.shape)
    for item, row in enumerate(values):
        writer.write(item, row)
    writer.close()
    regions = IndexedRegions.open(tmp_path, "index again")
    assert np.array_equal(regions.take([4, 0]), values[[4, 0]])
    flip_bit(tmp_path / "parts.npy", -4 * 12 * 2 - 3)  # in row 2
    damaged = IndexedRegions.open(tmp_path, "index again")
    assert np.array_equal(damaged.take([0, 1, 3, 4]), values[[0, 1, 3, 4]])
    with pytest.raises(ValueError, match=r"parts\.npy, row 2: damaged: checksum mismatch; index again"):
        damaged.take([1, 2])


@pytest.mark.parametrize("name", ["parts.npy", "parts_crc32.npy"])
def test_an_index_without_its_regions_is_neither_searched_nor_updated(tmp_path, capsys, name):
    shared = shared_index("scan")
    folder = shutil.copytree(shared, tmp_path / "index")
    (folder / "generation_000001" / name).unlink()
    assert name in one_line(capsys, "search", folder, "a red star")
    assert name in one_line(capsys, "index", f"{shared}_model", "--images", SCENES, "--out", folder)
    assert (folder / "generation_000001").exists()


def test_features_are_checked_when_they_are_read(tmp_path, capsys):
    out = tmp_path / "features"
    main(["features", "scenes:9", str(out), "--image-encoder", "none", "--text-encoder", "bag-of-words"])
    open_data(out)
    flip_bit(out / "train_ims.npy", -2)
    line = one_line(capsys, "train", out, "--epochs", 1, "--runs", tmp_path / "runs")
    assert "train_ims.npy is missing or was changed" in line
    assert not list((tmp_path / "runs").glob("*")) if (tmp_path / "runs").exists() else True


@pytest.mark.parametrize("to", ["precomp", "parquet"])
def test_every_file_of_a_converted_dataset_is_checked(tmp_path, capsys, to):
    out = tmp_path / "out"
    main(["data", "convert", "scenes:9", str(out), "--to", to])
    for file in sorted(out.iterdir()):
        flip_bit(file)
        assert f"{file.name} is missing or was changed" in one_line(capsys, "data", "inspect", out)
        if to == "parquet" and file.suffix == ".parquet":
            assert f"{file.name} is missing or was changed" in one_line(capsys, "data", "inspect", file)
        assert "was changed" in one_line(capsys, "data", "convert", "scenes:9", out, "--to", to)
        flip_bit(file)
    main(["data", "inspect", str(out)])


def test_a_converted_dataset_that_was_edited_is_read_without_its_manifest(tmp_path):
    main(["data", "convert", "scenes:9", str(tmp_path / "out")])
    captions = tmp_path / "out" / "train_caps.txt"
    captions.write_text(captions.read_text().replace("a", "e"))
    with pytest.raises(ValueError, match=r"train_caps\.txt is missing or was changed.*remove converted\.json if the"):
        open_data(tmp_path / "out")
    (tmp_path / "out" / "converted.json").unlink()
    open_data(tmp_path / "out")


def test_a_negative_shape_is_one_line(tmp_path, capsys):
    np.save(tmp_path / "train_ims.npy", np.zeros((4, 8), dtype=np.float32))
    (tmp_path / "train_caps.txt").write_text("a dog\n" * 4)
    content = (tmp_path / "train_ims.npy").read_bytes()
    (tmp_path / "train_ims.npy").write_bytes(content.replace(b"(4, 8), ", b"(-4, 8),"))
    assert "train_ims.npy: not a readable .npy array" in one_line(capsys, "data", "inspect", tmp_path)


# Manifests vouch for other files, and for themselves.


@pytest.mark.parametrize("name", [runs.MACHINE, "config.json"])
def test_every_value_in_a_manifest_of_a_run_counts(run, name):
    tercet.load(run)
    refused = []
    for position, digit in enumerate((run / name).read_bytes()):
        if chr(digit) in "0123456789abcdf":  # another digit or letter: still valid JSON
            flip_bit(run / name, position)
            try:
                tercet.load(run)
            except ValueError as error:
                refused.append(str(error))
            flip_bit(run / name, position)
            if len(refused) == 40:
                break
    assert len(refused) == 40
    assert all(name in line or "format version" in line for line in refused)


def test_a_flipped_bit_of_each_manifest_is_named(tmp_path, run, index):
    model("vsepp").save(tmp_path / "model")
    main(["features", "scenes:9", str(tmp_path / "f"), "--image-encoder", "none", "--text-encoder", "bag-of-words"])
    options = ["--top-captions", "9", "--top-images", "9"]
    main(["mine", str(run), "--data", DATA, "--out", str(tmp_path / "mined"), *options])
    data = paired(DATA, open_data(DATA).split("train"))
    readers = {
        tmp_path / "model" / "config.json": lambda: tercet.load(tmp_path / "model"),
        tmp_path / "f" / "features.json": lambda: open_data(tmp_path / "f"),
        tmp_path / "mined" / "mined.json": lambda: open_mined(tmp_path / "mined", data),
        index / "index.json": lambda: open_index(index),
        run / runs.MACHINE: lambda: runs.read_metrics(run),
    }
    for manifest, read in readers.items():
        read()
        content = manifest.read_bytes()
        flip_bit(manifest, content.rindex(f'"format_version": {FORMAT_VERSION}'.encode()) - 20)  # in another value
        with pytest.raises(ValueError, match=manifest.name):
            read()


# Files that are removed or changed while a run trains.


@pytest.mark.parametrize("name", ["settings.json", "config.json", "metrics.jsonl", "weights.safetensors"])
@pytest.mark.parametrize("damage", ["removed", "changed"])
def test_a_file_that_is_gone_before_the_end_is_named(tmp_path, monkeypatch, name, damage):
    evaluate = Loop.evaluate_best

    def damaged(self):
        evaluate(self)
        file = self.folder / name
        file.unlink() if damage == "removed" else flip_bit(file)

    with monkeypatch.context() as patched:
        patched.setattr(Loop, "evaluate_best", damaged)
        with pytest.raises(ValueError, match=f"{name} is missing or was changed: run the command again"):
            tercet.train(**SMALL, runs=tmp_path)
    (folder,) = tmp_path.iterdir()
    assert not runs.is_finished(folder)
    if name != "weights.safetensors":  # these cannot be made again without the epoch that made them
        runs.check_run(tercet.train(**SMALL, runs=tmp_path).folder)


def test_metrics_that_are_removed_between_lines_are_noticed(tmp_path):
    file = runs.MetricsFile(tmp_path, 0)
    file.append({"step": 1})
    (tmp_path / "metrics.jsonl").unlink()
    with pytest.raises(ValueError, match=r"metrics\.jsonl is missing or was changed: run the command again"):
        file.append({"step": 2})
    (tmp_path / "metrics.jsonl").unlink()
    with pytest.raises(ValueError, match=r"metrics\.jsonl is missing or was changed: run the command again"):
        file.sync()


def test_weights_that_change_before_they_are_evaluated_are_named(tmp_path, monkeypatch):
    evaluate = Loop.evaluate_best

    def damaged(self):
        flip_bit(self.folder / "weights.safetensors", -2)
        evaluate(self)

    with monkeypatch.context() as patched:
        patched.setattr(Loop, "evaluate_best", damaged)
        with pytest.raises(ValueError, match=r"weights\.safetensors is missing or was changed: --no-resume"):
            tercet.train(**SMALL, runs=tmp_path)
    with pytest.raises(ValueError, match=r"weights\.safetensors is missing or was changed: --no-resume"):
        tercet.train(**SMALL, runs=tmp_path)
    runs.check_run(tercet.train(**SMALL, runs=tmp_path, resume=False).folder)


def test_metrics_that_changed_since_the_checkpoint_are_not_resumed(tmp_path, monkeypatch, capsys):
    def stop(self):
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(Loop, "evaluate_best", stop)
        with pytest.raises(KeyboardInterrupt):
            tercet.train(**SMALL, runs=tmp_path)
    (folder,) = tmp_path.iterdir()
    content = (folder / "metrics.jsonl").read_bytes()
    flip_bit(folder / "metrics.jsonl", content.index(b'"rsum": ') + 8)
    tercet.train(**SMALL, runs=tmp_path)
    assert "metrics.jsonl was changed since that checkpoint" in capsys.readouterr().err
    assert content in (folder / "metrics.jsonl").read_bytes()
