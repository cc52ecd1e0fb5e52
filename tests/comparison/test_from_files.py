"""`tercet compare --from`: per-image results of any program, ranks and run folders; nothing is trained."""

import csv
import json
import pickle
import shutil
import zipfile

import numpy as np
import pytest

import tercet
from tercet.cli.main import main
from tercet.comparison.from_files import read_values
from tercet.evaluation import RankTable
from tercet.evaluation.metrics import contributions
from tests.checksums import flip_bit
from tests.comparison.written_results import make_results, ranks_of, write_run


@pytest.fixture
def values():
    random = np.random.default_rng(0)
    return {name: 100.0 * (random.random((3, 300)) < recall) for name, recall in (("a b", 0.6), ("c", 0.3), ("d", 0.3))}


def run(*arguments):
    main(["compare", "--from", *map(str, arguments)])


def test_arrays_of_two_programs(tmp_path, values, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    np.savez("ours.npz", **{"a b": values["a b"]})
    np.savez("theirs.npz", c=values["c"], d=values["d"])
    run("ours.npz", "theirs.npz", "--rope", "30")
    printed = " ".join(capsys.readouterr().out.split())
    assert "Use a b: metric" in printed
    assert "It is better than all 2 others" in printed
    assert "within 30" in printed
    (folder,) = (tmp_path / "runs").iterdir()
    document = json.loads((folder / "significance.json").read_text())
    expected = tercet.significance(values, rope=30.0).to_dict()
    assert {key: document[key] for key in expected} == json.loads(json.dumps(expected))
    assert "Holm, 1979) for 3 comparisons" in (folder / "tables.md").read_text()
    assert "\\begin{tabular}" in (folder / "tables.tex").read_text()


def test_csv_lines_give_the_same_values_as_arrays(tmp_path, values):
    np.savez(tmp_path / "all.npz", **values)
    with (tmp_path / "all.csv").open("w", newline="") as stream:
        lines = csv.writer(stream)
        lines.writerow(("seed", "objective", "value", "image"))
        for name, array in values.items():
            for (seed, image), value in np.ndenumerate(array):
                lines.writerow((seed, name, value, image))
    from_csv, ranks = read_values([tmp_path / "all.csv"], "rsum")
    from_npz, _ = read_values([tmp_path / "all.npz"], "rsum")
    assert not ranks
    assert list(from_csv) == list(from_npz) == list(values)
    for name in values:
        assert np.array_equal(from_csv[name], from_npz[name])


def test_ranks_of_files_and_of_run_folders(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    results = make_results(tmp_path / "runs", {"nt-xent": 6.0, "triplet": 2.0}, seeds=4)
    folders = [each.folder for by_seed in results.runs.values() for each in by_seed.values()]
    found, are_ranks = read_values(folders, "t2i_r1")
    assert are_ranks
    assert set(found) == {"nt-xent", "triplet"}
    expected = contributions(results.runs["triplet"][1].ranks, "t2i_r1")
    assert np.array_equal(found["triplet"][1], expected)
    random = np.random.default_rng(0)
    for seed in (0, 3):
        ranks = {name: array for name, array in ranks_of(random, 200, 9.0).items() if "negatives" not in name}
        np.savez(tmp_path / f"mine_s{seed}.npz", **ranks)
    both, _ = read_values([*folders, tmp_path / "mine_s0.npz", tmp_path / "mine_s3.npz"], "rsum")
    assert both["mine"].shape == (4, 200)
    assert np.isnan(both["mine"][1]).all()
    assert np.array_equal(both["mine"][3], contributions(RankTable(ranks), "rsum"))
    run(*folders, "--metric", "t2i_r1", "--baseline", "triplet")
    assert "Use nt-xent: t2i_r1" in " ".join(capsys.readouterr().out.split())


def test_runs_of_one_objective_are_named_by_what_differs(tmp_path):
    random = np.random.default_rng(0)
    folders = [
        write_run(tmp_path / str(rate), "nt-xent", 0, ranks_of(random, 20, 6.0), learning_rate=rate)
        for rate in (0.001, 0.01)
    ]
    found, _ = read_values(folders, "rsum")
    assert list(found) == ["nt-xent learning_rate=0.001", "nt-xent learning_rate=0.01"]
    other = write_run(tmp_path, "triplet", 0, ranks_of(random, 20, 6.0), learning_rate=0.1)
    assert list(read_values([folders[0], other], "rsum")[0]) == ["nt-xent", "triplet"]


def test_wrong_files_are_one_line(tmp_path, values, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    np.savez("good.npz", **values)
    np.savez("other.npz", e=values["c"][:, :50])
    np.savez("flat.npz", e=values["c"][0])
    np.savez("half.npz", i2t_rank=np.ones(3), t2i_rank=np.ones(3), image=np.arange(3))
    np.savez("objects.npz", e=np.array([{}], dtype=object))
    shutil.copy("good.npz", "copy.npz")
    (tmp_path / "broken.npz").write_bytes(b"PK nothing")
    np.savez_compressed("damaged.npz", **values)
    with zipfile.ZipFile("damaged.npz") as archive:
        first = archive.infolist()[0]
    flip_bit(tmp_path / "damaged.npz", first.header_offset + 60 + len(first.filename), bit=6)  # of the compressed data
    with zipfile.ZipFile("huge.npz", "w") as archive:
        header = "{'descr': '<f8', 'fortran_order': False, 'shape': (1000000000, 1000), }".ljust(117) + "\n"
        archive.writestr("a.npy", b"\x93NUMPY\1\0" + len(header).to_bytes(2, "little") + header.encode())
    (tmp_path / "pickle.npz").write_bytes(pickle.dumps([0]))
    (tmp_path / "columns.csv").write_text("name,seed,image,value\n")
    (tmp_path / "number.csv").write_text("objective,seed,image,value\na,0,0,1\na,0,1,x\n")
    (tmp_path / "hole.csv").write_text("objective,seed,image,value\na,0,0,1\na,0,1,1\nb,0,0,1\n")
    (tmp_path / "twice.csv").write_text("objective,seed,image,value\na,0,0,1\na,0,0,1\n")
    for arguments, message in (
        (("good.npz", "other.npz"), "other.npz: e seed 0 has 50 images, good.npz has 300"),
        (("good.npz", "copy.npz"), "copy.npz: a b seed 0 is also in good.npz"),
        (("flat.npz",), r"flat.npz: e must be an array (seed, image) of numbers, got shape (300,)"),
        (("half.npz",), "half.npz: ranks need the arrays image, caption, i2t_rank, t2i_rank; there is no caption"),
        (("objects.npz",), "objects.npz is not an .npz file of arrays of numbers"),
        (("broken.npz",), "broken.npz is not an .npz file"),
        (("damaged.npz",), "damaged.npz is not an .npz file of arrays of numbers"),
        (("huge.npz",), "huge.npz is not an .npz file of arrays of numbers"),
        (
            ("pickle.npz",),
            "pickle.npz is not an .npz file of arrays of numbers: it contains pickled objects, which are",
        ),
        (("missing.npz",), "missing.npz"),
        (("columns.csv",), "columns.csv: line 1 must have the columns objective, seed, image, value"),
        (("number.csv",), "number.csv: line 3: could not convert"),
        (("hole.csv",), "hole.csv: b seed 0 has no value of image '1'"),
        (("twice.csv",), "twice.csv: line 3: a seed 0 has image '0' already"),
        (("twice.csv", "hole.csv"), "one .csv file"),
        (("good.npz", "--baseline", "b"), "no baseline 'b'"),
        (("good.npz", "--seeds", "5"), "--seeds has no effect with --from"),
        (("good.npz", "--epochs", "2"), "--epochs has no effect with --from"),
        ((str(tmp_path),), "--from reads .npz and .csv files and run folders"),
    ):
        with pytest.raises(SystemExit) as stopped:
            run(*arguments)
        captured = capsys.readouterr()
        assert stopped.value.code == 2, arguments
        assert message in " ".join((captured.err + captured.out).split()), arguments
    assert not (tmp_path / "runs").exists()
