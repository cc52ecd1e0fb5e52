"""The baselines of the benchmarks compute what ours compute: otherwise a ratio of times means nothing."""

import sys
from pathlib import Path

import pytest
import torch

import tercet
from tercet.objectives import CATALOGUE

sys.path.insert(0, str(Path(__file__).parents[1] / "benchmarks"))
from plain import plain_form


@pytest.mark.parametrize("name", CATALOGUE)
def test_plain_forms_have_our_gradient(name):
    generator = torch.Generator().manual_seed(0)
    images = torch.nn.functional.normalize(torch.randn(12, 6, generator=generator, dtype=torch.float64), dim=1)
    noise = torch.randn(12, 6, generator=generator, dtype=torch.float64)
    captions = torch.nn.functional.normalize(images + 0.5 * noise, dim=1)
    found = []
    for call in (tercet.objective(name), plain_form(name)):
        x, y = images.clone().requires_grad_(), captions.clone().requires_grad_()
        call(x, y).backward()
        found.append((x.grad, y.grad))
    torch.testing.assert_close(found[0], found[1], rtol=1e-6, atol=1e-9)


def test_the_original_loader_and_ours_give_the_same_batch(tmp_path):
    """The same pairs, regions and numbers of words; only the order within the batch differs, which theirs sorts."""
    import data as bench

    bench.write_folder(tmp_path, 4, 8, "float32")
    split = bench.open_data(tmp_path).splits["train"]
    vocabulary = bench.build_vocabulary(split.texts)
    batches = bench.Batches(bench.paired("x", split, captions=bench.tokens_of(split.texts, vocabulary)))
    meeting = bench.paired_meetings(batches.data.owners, 16, seed=0, epoch=0)[0]
    ours = batches.make(meeting)
    original = bench.OriginalDataset(tmp_path, vocabulary)
    images, captions, lengths, indices = bench.original_collate([original[item] for item in meeting.captions.tolist()])
    for row, index in enumerate(indices):
        same = meeting.captions.tolist().index(index)
        assert torch.equal(images[row], ours.images[same])
        assert captions[row, : lengths[row]].tolist() == ours.captions[same, : ours.caption_lengths[same]].tolist()


@pytest.mark.parametrize("system", ["vsepp", "vsrn", "vse-infinity"])
def test_the_original_encoders_give_what_ours_give(system):
    from originals import ORIGINALS

    from tercet.models import build

    torch.manual_seed(0)
    shape = (6,) if system == "vsepp" else (5, 6)
    model = build(system, words=20, image_dim=6, joint_dim=8, word_dim=4).eval()
    images, token_ids = torch.randn(4, *shape), torch.randint(4, 20, (4, 7))
    lengths, full = torch.tensor([7, 5, 5, 2]), torch.full((4,), 5)
    for encode, ours in zip(ORIGINALS[system], (model.encode_images, model.encode_captions), strict=True):
        given = (images, full) if ours == model.encode_images else (token_ids, lengths)
        torch.testing.assert_close(encode(model, *given), ours(*given), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("row", ["SCAN t2i", "SCAN i2t", "BFAN equal", "BFAN prob"])
def test_the_original_loop_over_captions_gives_what_our_attention_gives(row):
    import attention as bench

    sets = bench.Sets.drawn(4, 5, 8, torch.float64)
    expected, found = (bench.step(compare, sets) for compare in bench.contestants(row, 8).values())
    torch.testing.assert_close(found, expected, rtol=1e-6, atol=1e-9)


def test_the_benchmark_of_attention_runs(tmp_path, monkeypatch):
    import attention as bench

    monkeypatch.setattr(bench, "LARGER", ())  # each is another process
    sizes = ["--dims", "8", "--images", "3", "4", "--captions", "4", "7", "--repeats", "1"]
    bench.main([*sizes, "--rows", "BFAN equal", "--out", str(tmp_path)])
    (result,) = tmp_path.iterdir()
    assert result.read_text().count("| BFAN equal | 8 |") == 2  # times and memory


def test_mining_finds_what_faiss_finds(tmp_path, capsys):
    """The benchmark stops where the lists differ; here the sets are small enough for both directions to be whole."""
    import mining as bench

    bench.main(["--images", "1500", "--captions", "4000", "--dim", "16", "--out", str(tmp_path)])
    (page,) = tmp_path.iterdir()
    assert "| the whole set, extrapolated, s |" in page.read_text()


def test_the_parts_of_a_second_round_are_those_of_the_step(tmp_path):
    import second_round as bench

    data, sizes = bench.made_data("heads", 60)
    loop = bench.loop_of("heads", "aoq", data, sizes, tmp_path / "loop")
    for call in bench.parts_of(loop).values():
        call()
    next(bench.endless(loop))


def test_a_second_round_begins_where_a_first_one_ended(tmp_path):
    """Of the same data: after a first round fewer hinges of members are active, and fewer items have a gradient."""
    import second_round as bench

    data, sizes = bench.learnable_data(150)
    start = bench.first_round(data, sizes, 60, tmp_path / "first")
    assert start[1].captions.shape == (150, bench.LISTED[0])
    found = []
    for name, given in (("untrained", None), ("trained", start)):
        loop = bench.loop_of("heads", "aoq", data, sizes, tmp_path / name, given)
        own, members, share = bench.active_in(loop, 2)
        found.append((sum(own), sum(members), share))
    assert all(after < before for before, after in zip(*found, strict=True))
    assert found[1][2] > 0


def test_the_table_of_a_second_round_says_which_row_is_one(tmp_path):
    import second_round as bench

    sizes = ["--images", "60", "--learned-images", "150", "--first-steps", "3", "--turns", "1"]
    bench.main(["--systems", "heads", *sizes, "--out", str(tmp_path)])
    (file,) = tmp_path.iterdir()
    rows = [line for line in file.read_text().splitlines() if line.startswith("| heads")]
    assert [row.split(" | ")[0] for row in rows] == ["| heads, second round", "| heads, untrained"]
    assert "**Second round** is the state of one" in file.read_text()


def test_the_load_on_the_server_is_real_and_recall_is_that_of_the_evaluation(tmp_path):
    import search as bench
    from tercet.data.formats import open_data
    from tercet.data.pictures import open_picture
    from tercet.search.items import pictures_of_data
    from tests.search.made import SCENES, index, model

    made = index(tmp_path, "found", model("vsepp"))
    load = bench.under_load(made, clients=4, seconds=2)
    assert len(load.milliseconds) == 8
    assert load.errors == []
    assert 0 < load.at(0.5) <= load.at(0.95) <= max(load.milliseconds)
    retriever, data = model("vsepp").eval(), bench.open_index(made).items
    pictures = pictures_of_data(open_data(SCENES))
    images = retriever.embed_pictures([open_picture(pictures[item.path][0]) for item in data])
    captions = [(caption, row) for row, item in enumerate(data) for caption in item.captions]
    texts, owners = zip(*captions, strict=True)
    expected = tercet.evaluate_embeddings(images, retriever.embed_texts(texts), owners=torch.tensor(owners))
    assert bench.recall_through(made) == (pytest.approx(expected["t2i_r10"]), len(texts))
