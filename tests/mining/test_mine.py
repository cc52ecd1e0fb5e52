"""Mined tables equal brute force and the authors' lists, also after a kill and a resume."""

import json
import multiprocessing
import os
import signal
import time
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from tercet.data.dataset import PairedData
from tercet.data.feature_array import FeatureArray
from tercet.data.hard_negatives import HardNegativeSampler, MinedTable, count_empty_lists, open_mined
from tercet.mining import mine as module
from tercet.mining.filters import FalseNegativeFilters
from tercet.mining.mine import MiningConfig, mine
from tercet.similarity import SplitScorer, dot_product_scorer
from tests.checksums import record_again
from tests.objectives.test_goldens import golden

MODEL = {"system": "heads", "weights": "abc"}


def rows(count):
    """Placeholder features of which only the number of items is used."""
    return FeatureArray((np.zeros((count, 1), dtype=np.float32),), "nowhere")


def world(images=23, captions=61, dim=6, seed=0, texts=None, truth=None):
    generator = torch.Generator().manual_seed(seed)
    owners = torch.cat([torch.arange(images), torch.randint(images, (captions - images,), generator=generator)])
    owners = owners[torch.randperm(captions, generator=generator)]
    x, y = (torch.randint(-3, 4, (n, dim), generator=generator).float() for n in (images, captions))  # exact, with ties
    texts = tuple(texts or (f"caption number {n}" for n in range(captions)))
    return SimpleNamespace(
        data=PairedData("world", rows(images), rows(captions), owners, texts, truth), x=x, y=y, S=x @ y.T
    )


def scorer_of(w):
    return lambda folder: dot_product_scorer(w.x, w.y)._replace(block_rows=5)


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch):
    monkeypatch.setattr(module, "BLOCK_CAPTIONS", 13)


def sorted_lists(S, hidden, k, skip=0):
    lists = []
    for row, hidden_row in zip(S.tolist(), hidden.tolist(), strict=True):
        order = sorted((c for c in range(len(row)) if not hidden_row[c]), key=lambda c: (-row[c], c))[skip : k + skip]
        lists.append(order + [-1] * (k - len(order)))
    return np.array(lists)


def brute_force(w, config, hidden=None, caps=(None, None)):
    own = w.data.owners[None, :] == torch.arange(len(w.data.images))[:, None]
    hidden = own if hidden is None else own | hidden
    skip = config.filters.skip
    k = min(config.captions + skip, len(w.y) - int(w.data.owners.bincount().min())) - skip
    j = min(config.images + skip, len(w.x) - 1) - skip
    over = [torch.zeros_like(own) if cap is None else cap for cap in caps]
    return sorted_lists(w.S, hidden | over[0], k, skip), sorted_lists(w.S.T, (hidden | over[1]).T, j, skip)


@pytest.mark.parametrize("k", [(1, 1), (7, 4), (30, 9), (500, 500)])
@pytest.mark.parametrize("seed", [0, 1])
def test_lists_equal_brute_force(tmp_path, k, seed):
    w, config = world(seed=seed), MiningConfig(*k)
    assert mine(scorer_of(w), w.data, tmp_path / "table", config, MODEL)
    table = open_mined(tmp_path / "table", w.data)
    captions, images = brute_force(w, config)
    assert np.array_equal(table.captions, captions)
    assert np.array_equal(table.images, images)
    valid = table.captions >= 0
    assert np.array_equal(
        table.caption_similarity[valid], np.take_along_axis(w.S.numpy(), np.maximum(captions, 0), 1)[valid]
    )
    assert np.isneginf(table.caption_similarity[~valid]).all()
    assert {file.name for file in (tmp_path / "table").iterdir()} == {
        "mined.json",
        "i2t.npy",
        "t2i.npy",
        "i2t_similarity.npy",
        "t2i_similarity.npy",
    }


def test_filters_exclude_and_count_their_pairs(tmp_path):
    texts = [f"caption number {n}" for n in range(61)]
    w = world(texts=texts)
    image = int(w.data.owners[3])
    other = next(c for c in range(61) if int(w.data.owners[c]) != image)
    texts[3], texts[other] = "two dogs run on the wet green grass", "Two dogs run on the wet grass."
    truth = torch.rand(23, 61, generator=torch.Generator().manual_seed(5)) < 0.1
    w = world(texts=texts, truth=lambda i, c: truth[i][:, c])
    own = w.data.owners[None, :] == torch.arange(23)[:, None]
    similar = torch.zeros_like(own)
    similar[image, other] = similar[int(w.data.owners[other]), 3] = True
    listed = tmp_path / "pairs.csv"
    listed.write_text("image,caption\n4,9\n4,10\n\n7 2\n")
    in_file = torch.zeros_like(own)
    in_file[[4, 4, 7], [9, 10, 2]] = True
    best = torch.stack([w.S[i][own[i]].max() for i in range(23)])
    caps = (best - 1)[:, None] < w.S, (w.S[w.data.owners, torch.arange(61)] - 1)[None, :] < w.S
    cases = {
        "skip": (FalseNegativeFilters(skip=3), own & False, (None, None), {"skip": 3 * (23 + 61)}),
        "near": (FalseNegativeFilters(near_duplicates=True), similar, (None, None), {"near_duplicates": 2}),
        "known": (FalseNegativeFilters(known=True), truth, (None, None), {"known": int((truth & ~own).sum())}),
        "pairs": (FalseNegativeFilters(pairs=listed), in_file, (None, None), {"pairs": int((in_file & ~own).sum())}),
        "margin": (
            FalseNegativeFilters(margin=1.0),
            own & False,
            caps,
            {"margin_i2t": int((caps[0] & ~own).sum()), "margin_t2i": int((caps[1] & ~own).sum())},
        ),
    }
    cases["all"] = (
        FalseNegativeFilters(2, True, True, listed, 1.0),
        similar | truth | in_file,
        caps,
        None,
    )
    for name, (filters, hidden, over, counts) in cases.items():
        config = MiningConfig(9, 5, filters)
        mine(scorer_of(w), w.data, tmp_path / name, config, MODEL)
        table = open_mined(tmp_path / name, w.data)
        captions, images = brute_force(w, config, hidden, over)
        assert np.array_equal(table.captions, captions), name
        assert np.array_equal(table.images, images), name
        if counts is not None:
            assert json.loads((tmp_path / name / "mined.json").read_text())["excluded"] == counts


@pytest.mark.parametrize(
    ("line", "message"), [("1,2,3", "two integers"), ("a,b", "two integers"), ("99,1", "not in the")]
)
def test_a_bad_file_of_pairs_is_refused_with_its_line(tmp_path, line, message):
    w = world()
    (tmp_path / "pairs.csv").write_text(f"image,caption\n1,2\n{line}\n")
    with pytest.raises(ValueError, match=rf"pairs.csv, line 3: .*{message}"):
        mine(
            scorer_of(w),
            w.data,
            tmp_path / "table",
            MiningConfig(5, 5, FalseNegativeFilters(pairs=tmp_path / "pairs.csv")),
            MODEL,
        )


def _mine_slowly(folder, pause):
    module.BLOCK_CAPTIONS = 13
    w = world(images=60, captions=150)
    products = dot_product_scorer(w.x, w.y)

    def block(rows, columns):
        time.sleep(pause)
        return products.block(rows, columns)

    mine(
        lambda folder: SplitScorer(block, products.of_pairs, 5),
        w.data,
        folder / "table",
        MiningConfig(20, 8, FalseNegativeFilters(margin=0.0)),
        MODEL,
        save_interval=0.0,
    )


@pytest.mark.slow
def test_killed_and_resumed_it_writes_the_identical_table(tmp_path):
    """Killed by SIGKILL, each time after another block of images is saved."""
    uninterrupted, killed = tmp_path / "uninterrupted", tmp_path / "killed"
    _mine_slowly(uninterrupted, 0.0)
    spawn = multiprocessing.get_context("spawn")
    progress, last = killed / "table.unfinished" / "progress.safetensors", 0
    for _ in range(3):
        process = spawn.Process(target=_mine_slowly, args=(killed, 0.004))
        process.start()
        while process.is_alive() and not (progress.is_file() and progress.stat().st_mtime_ns > last):
            time.sleep(0.001)
        os.kill(process.pid, signal.SIGKILL)
        process.join()
        assert progress.is_file()
        last = progress.stat().st_mtime_ns
    _mine_slowly(killed, 0.0)
    for file in (uninterrupted / "table").iterdir():
        assert file.read_bytes() == (killed / "table" / file.name).read_bytes(), file.name
    assert [path.name for path in killed.iterdir()] == ["table"]


def test_a_table_of_another_model_or_other_data_is_refused(tmp_path):
    w = world()
    products = dot_product_scorer(w.x, w.y)
    table = tmp_path / "table"
    assert mine(lambda folder: products, w.data, table, MiningConfig(5, 5), MODEL)
    assert not mine(lambda folder: products, w.data, table, MiningConfig(5, 5), MODEL)
    with pytest.raises(ValueError, match="is of another model"):
        mine(lambda folder: products, w.data, table, MiningConfig(5, 5), MODEL | {"weights": "xyz"})
    with pytest.raises(ValueError, match="is of other settings"):
        mine(lambda folder: products, w.data, table, MiningConfig(6, 5), MODEL)
    other = world(seed=9)
    with pytest.raises(ValueError, match="is of other data"):
        mine(lambda folder: products, other.data, table, MiningConfig(5, 5), MODEL)
    with pytest.raises(ValueError, match="mined from another dataset than world"):
        open_mined(table, other.data)
    (tmp_path / "something").mkdir()
    with pytest.raises(ValueError, match="exists and is not a mined table"):
        mine(lambda folder: products, w.data, tmp_path / "something", MiningConfig(5, 5), MODEL)
    # An unfinished table of another model is not resumed either.
    half = tmp_path / "half.unfinished"
    half.mkdir()
    (half / "mined.json").write_text((table / "mined.json").read_text())
    with pytest.raises(ValueError, match="is of another model"):
        mine(lambda folder: products, w.data, tmp_path / "half", MiningConfig(5, 5), MODEL | {"weights": "xyz"})


def test_damaged_tables_are_refused(tmp_path):
    w = world()
    mine(scorer_of(w), w.data, tmp_path / "table", MiningConfig(5, 5), MODEL)
    with pytest.raises(ValueError, match="no mined table"):
        open_mined(tmp_path / "nowhere", w.data)
    original = np.load(tmp_path / "table" / "i2t.npy")
    altered = original.copy()
    altered[0, 0], altered[0, 1] = original[0, 1], original[0, 0]
    np.save(tmp_path / "table" / "i2t.npy", altered)
    with pytest.raises(ValueError, match=r"i2t\.npy is missing or was changed: remove the table and mine again"):
        open_mined(tmp_path / "table", w.data)
    np.save(tmp_path / "table" / "i2t.npy", original[:, :4])
    record_again(tmp_path / "table" / "mined.json")
    with pytest.raises(ValueError, match=r"differs from shape \(23, 5\) of its similarities"):
        open_mined(tmp_path / "table", w.data)
    np.save(tmp_path / "table" / "i2t.npy", np.zeros((23, 5), dtype=np.int64))
    record_again(tmp_path / "table" / "mined.json")
    with pytest.raises(ValueError, match=r"i2t.npy: expected int32 of shape \(row k\), got int64"):
        open_mined(tmp_path / "table", w.data)
    np.save(tmp_path / "table" / "i2t.npy", np.full((23, 5), 61, dtype=np.int32))
    record_again(tmp_path / "table" / "mined.json")
    with pytest.raises(ValueError, match="expected caption indices from -1 to 60"):
        open_mined(tmp_path / "table", w.data)
    np.save(tmp_path / "table" / "i2t.npy", np.zeros((22, 5), dtype=np.int32))
    record_again(tmp_path / "table" / "mined.json")
    with pytest.raises(ValueError, match=r"shape \(22, 5\) differs"):
        open_mined(tmp_path / "table", w.data)
    (tmp_path / "table" / "i2t.npy").write_bytes(b"no array")
    record_again(tmp_path / "table" / "mined.json")
    with pytest.raises(ValueError, match="not a readable"):
        open_mined(tmp_path / "table", w.data)
    (tmp_path / "table" / "mined.json").write_text("{}")
    with pytest.raises(ValueError, match="not the manifest"):
        open_mined(tmp_path / "table", w.data)
    (tmp_path / "table" / "mined.json").unlink()
    with pytest.raises(ValueError, match=r"one file i2t_\*.npy"):
        open_mined(tmp_path / "table", w.data)


def test_lists_and_members_equal_the_authors_program(tmp_path):
    """Half-precision products as theirs; the order of ties is undefined, so lists are compared by similarity."""
    tensors, about = golden("aoq_offline_candidates")
    x, y = tensors["in.img_emb"], tensors["in.cap_emb"]
    S = (x.half()[:, None] * y.half()[None]).float().sum(dim=2).half().float()
    owners = torch.arange(200) // 5
    data = PairedData("golden", rows(40), rows(200), owners, tuple(map(str, range(200))))
    mine(
        lambda folder: SplitScorer(lambda i, c: S[i, c].clone(), lambda i, c: S[i, c]),
        data,
        tmp_path / "ours",
        MiningConfig(60, 12),
        MODEL,
    )
    ours = open_mined(tmp_path / "ours", data)
    for direction, candidates, anchored in (("i2t", "captions", S), ("t2i", "images", S.T)):
        published = tensors[f"out.{direction}"].long()
        expected = anchored.gather(1, published)
        assert torch.equal(expected, tensors[f"ref.{direction}_half_scores"])
        similarity = anchored.gather(1, torch.from_numpy(getattr(ours, candidates)).long())
        assert torch.equal(similarity, expected)
        for mine_row, their_row, level in zip(getattr(ours, candidates), published, expected, strict=True):
            inside = level > level[-1]  # candidates above the last tie are in both lists
            assert set(mine_row[inside.numpy()].tolist()) == set(their_row[inside].tolist())
    # Their lists are read as they are; for the same draws the members equal those of their loader.
    folder = tmp_path / "theirs"
    folder.mkdir()
    np.save(folder / "i2t_golden.npy", tensors["out.i2t"].numpy())
    np.save(folder / "t2i_golden.npy", tensors["out.t2i"].numpy())
    sampler = HardNegativeSampler(open_mined(folder, data), owners, about["candidate_size"])
    caption, _, n, n2, anchor_image, anchor_caption, i, t, i_other, t_other = tensors["out.loader_rows"].T
    assert torch.equal(anchor_caption, caption)
    drawn = sampler.at_positions(anchor_image, anchor_caption, n, (n2 + 0.5) / 5)
    assert torch.equal(drawn.images, torch.stack([i, i_other], dim=1))
    assert torch.equal(drawn.captions, torch.stack([t, t_other], dim=1))


def table_of(captions, images, similarity=None):
    return MinedTable(np.array(captions, dtype=np.int32), np.array(images, dtype=np.int32), "a table", "0", similarity)


@pytest.mark.parametrize("sampling", ["uniform", "normal", "similarity"])
def test_draws_follow_their_distribution(sampling):
    owners = torch.arange(50) // 5
    captions = np.array([[c for c in range(50) if c // 5 != i][:40] for i in range(10)])
    images = np.array([[i for i in range(10) if i != c // 5] for c in range(50)])
    similarity = np.linspace(0.9, 0.5, 40, dtype=np.float32)[None].repeat(10, axis=0)
    sampler = HardNegativeSampler(table_of(captions, images, similarity), owners, 40, sampling)
    pairs = 20_000
    drawn = sampler.draw(
        torch.zeros(pairs, dtype=torch.long), torch.zeros(pairs, dtype=torch.long), torch.Generator().manual_seed(0)
    )
    position = drawn.captions[:, 0] - 5  # the list of image 0 is 5, 6, ...
    assert torch.equal(drawn.images[:, 1], owners[drawn.captions[:, 0]])
    assert torch.equal(owners[drawn.captions[:, 1]], drawn.images[:, 0])
    assert torch.equal(drawn.images[:, 0], position // 5 + 1)  # one draw drives both lists
    shares = torch.bincount(position, minlength=40) / pairs
    expected = torch.full((40,), 1 / 40)
    if sampling == "normal":
        edges = (torch.arange(41) / 40 - 0.5) * 6
        edges[0], edges[-1] = -torch.inf, torch.inf
        below = torch.special.ndtr(edges)
        expected = below[1:] - below[:-1]
    elif sampling == "similarity":
        expected = (torch.from_numpy(similarity[0]) / 0.1).softmax(dim=0)
    assert (shares - expected).abs().max() < 4 * (expected.max() / pairs) ** 0.5


def test_one_draw_has_the_same_relative_position_in_a_short_list_as_in_a_long_one():
    """Clamping to the end of the short list would nearly always give its least hard image."""
    captions = np.array([[c for c in range(50) if c // 5 != i][:40] for i in range(10)])
    images = np.array([[i for i in range(10) if i != c // 5][:4] + [-1] * 5 for c in range(50)])
    sampler = HardNegativeSampler(table_of(captions, images), torch.arange(50) // 5, 40)
    zeros = torch.zeros(8000, dtype=torch.long)
    drawn = sampler.draw(zeros, zeros, torch.Generator().manual_seed(0))
    shares = torch.bincount(drawn.images[:, 0], minlength=10)[1:5] / 8000
    assert (shares - 0.25).abs().max() < 0.03
    assert HardNegativeSampler(table_of(captions, images), torch.arange(50) // 5, 10**20).draw(
        zeros[:3], zeros[:3], torch.Generator().manual_seed(0)
    )


def test_draws_from_short_lists_stay_inside_them():
    sampler = HardNegativeSampler(table_of([[1, -1, -1], [0, -1, -1]], [[1, -1], [0, -1]]), torch.tensor([0, 1]), 300)
    drawn = sampler.draw(torch.tensor([0, 1]), torch.tensor([0, 1]), torch.Generator().manual_seed(0))
    assert drawn.captions[:, 0].tolist() == [1, 0]
    assert drawn.images[:, 0].tolist() == [1, 0]
    with pytest.raises(ValueError, match="image 1 has no mined caption"):
        HardNegativeSampler(table_of([[1], [-1]], [[1], [0]]), torch.tensor([0, 1]))
    with pytest.raises(ValueError, match="holds no similarities"):
        HardNegativeSampler(table_of([[1], [0]], [[1], [0]]), torch.tensor([0, 1]), sampling="similarity")
    with pytest.raises(ValueError, match="--mined-top must be at least 1"):
        HardNegativeSampler(table_of([[1], [0]], [[1], [0]]), torch.tensor([0, 1]), 0)


@pytest.mark.parametrize(
    "filters", [FalseNegativeFilters(), FalseNegativeFilters(skip=2, near_duplicates=True, margin=1.0)]
)
def test_a_shortlist_is_reranked_by_another_model(tmp_path, filters, monkeypatch):
    monkeypatch.setattr("tercet.mining.rerank_lists.BATCH_PAIRS", 64)
    w, slow = world(), world(seed=4)
    mine(scorer_of(w), w.data, tmp_path / "quick", MiningConfig(20, 9), MODEL)
    quick = open_mined(tmp_path / "quick", w.data)
    config = MiningConfig(8, 5, filters)
    model = {"system": "bfan", "weights": "b"}
    split_scorer = dot_product_scorer(slow.x, slow.y)
    calls = []

    def of_pairs(image, caption):
        calls.append(len(image))
        if len(calls) == 5 + (filters.margin is not None):
            raise KeyboardInterrupt
        return split_scorer.of_pairs(image, caption)

    with pytest.raises(KeyboardInterrupt):
        mine(
            lambda f: SplitScorer(split_scorer.block, of_pairs),
            w.data,
            tmp_path / "slow",
            config,
            model,
            shortlist=quick,
        )
    assert mine(
        lambda f: SplitScorer(split_scorer.block, of_pairs), w.data, tmp_path / "slow", config, model, shortlist=quick
    )
    table = open_mined(tmp_path / "slow", w.data)
    own = w.data.owners[None, :] == torch.arange(23)[:, None]
    listed = [torch.zeros_like(own), torch.zeros_like(own)]
    for image, row in enumerate(quick.captions):
        listed[0][image, row[row >= 0]] = True
    for caption, row in enumerate(quick.images):
        listed[1][row[row >= 0], caption] = True
    over = [~mask for mask in listed]
    if filters.margin is not None:
        best = torch.stack([slow.S[i][own[i]].max() for i in range(23)])
        over[0] |= (best - 1)[:, None] < slow.S
        over[1] |= (slow.S[w.data.owners, torch.arange(61)] - 1)[None, :] < slow.S
    captions, images = brute_force(SimpleNamespace(data=w.data, x=slow.x, y=slow.y, S=slow.S), config, None, over)
    assert np.array_equal(table.captions, captions)
    assert np.array_equal(table.images, images)
    with pytest.raises(ValueError, match="is of another model"):
        mine(lambda f: split_scorer, w.data, tmp_path / "slow", config, model)


@pytest.mark.parametrize("filters", [{"skip": 60}, {"skip": 10_000}, {"pairs": "nofile.csv"}, {"known": True}])
def test_invalid_filters_fail_before_any_work(tmp_path, filters):
    w = world()
    given = filters | ({"pairs": tmp_path / "nofile.csv"} if "pairs" in filters else {})
    with pytest.raises(ValueError, match=r"leaves no negatives|cannot be read|has no annotations"):
        mine(
            lambda folder: pytest.fail("encoded"),
            w.data,
            tmp_path / "table",
            MiningConfig(5, 5, FalseNegativeFilters(**given)),
            MODEL,
        )
    assert list(tmp_path.iterdir()) == []
    for wrong, message in (((0, 5), "--top-captions"), ((5, 0), "--top-images")):
        with pytest.raises(ValueError, match=message):
            MiningConfig(*wrong)
    with pytest.raises(ValueError, match="--filter-margin must be a finite number"):
        MiningConfig(5, 5, FalseNegativeFilters(margin=float("nan")))


def test_an_edited_file_of_pairs_is_another_setting(tmp_path):
    w, file = world(), tmp_path / "pairs.csv"
    config = MiningConfig(5, 5, FalseNegativeFilters(pairs=file))
    file.write_text("0,10\n")
    mine(scorer_of(w), w.data, tmp_path / "table", config, MODEL)
    file.write_text("0,10\n1,11\n")
    with pytest.raises(ValueError, match="is of other settings"):
        mine(scorer_of(w), w.data, tmp_path / "table", config, MODEL)


def test_lists_that_filters_emptied_are_counted(tmp_path):
    w = world()
    mine(scorer_of(w), w.data, tmp_path / "table", MiningConfig(5, 5, FalseNegativeFilters(margin=1000.0)), MODEL)
    assert count_empty_lists(tmp_path / "table") == {"images": 23, "captions": 61}
    with pytest.raises(ValueError, match="image 0 has no mined caption: the filters removed all"):
        HardNegativeSampler(open_mined(tmp_path / "table", w.data), w.data.owners)
