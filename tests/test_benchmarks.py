"""The baselines of the benchmarks compute the same as ours, and tiny versions of the benchmarks run."""

import sys
from pathlib import Path

import pytest
import torch

import tercet
from tercet.objectives import OBJECTIVES

sys.path.insert(0, str(Path(__file__).parents[1] / "benchmarks"))
from plain import plain_form


@pytest.mark.parametrize("name", OBJECTIVES)
def test_plain_forms_have_our_gradient(name):
    generator = torch.Generator().manual_seed(0)
    images = torch.nn.functional.normalize(torch.randn(12, 6, generator=generator, dtype=torch.float64), dim=1)
    noise = torch.randn(12, 6, generator=generator, dtype=torch.float64)
    captions = torch.nn.functional.normalize(images + 0.5 * noise, dim=1)
    gradients = []
    for call in (tercet.objective(name), plain_form(name)):
        x, y = images.clone().requires_grad_(), captions.clone().requires_grad_()
        call(x, y).backward()
        gradients.append((x.grad, y.grad))
    torch.testing.assert_close(gradients[0], gradients[1], rtol=1e-6, atol=1e-9)


def test_the_original_loader_and_ours_give_the_same_batch(tmp_path):
    """The same pairs, regions and token ids; only the order within the batch differs, which theirs sorts by length."""
    import data as bench

    bench.write_folder(tmp_path, 4, 8, "float32")
    split = bench.open_data(tmp_path).splits["train"]
    vocabulary = bench.build_vocabulary(split.texts)
    collator = bench.Collator(bench.paired("x", split, captions=bench.tokenize_captions(split.texts, vocabulary)))
    batch_indices = bench.pair_batches(collator.data.owners, 16, seed=0, epoch=0)[0]
    ours, order = collator.make(batch_indices), batch_indices.captions.tolist()
    original = bench.OriginalDataset(tmp_path, vocabulary)
    images, captions, lengths, indices = bench.original_collate([original[index] for index in order])
    for row, index in enumerate(indices):
        our_row = order.index(index)
        caption = ours.captions[our_row, : ours.caption_lengths[our_row]]
        assert torch.equal(images[row], ours.images[our_row])
        assert captions[row, : lengths[row]].tolist() == caption.tolist()


@pytest.mark.parametrize("system", ["vsepp", "vsrn", "vse-infinity"])
def test_the_original_encoders_equal_ours(system):
    from originals import ORIGINALS

    from tercet.models import build

    torch.manual_seed(0)
    shape = (6,) if system == "vsepp" else (5, 6)
    model = build(system, vocab_size=20, image_dim=6, embed_dim=8, word_dim=4).eval()
    images, token_ids = torch.randn(4, *shape), torch.randint(4, 20, (4, 7))
    lengths, region_counts = torch.tensor([7, 5, 5, 2]), torch.full((4,), 5)
    for encode, ours in zip(ORIGINALS[system], (model.encode_images, model.encode_captions), strict=True):
        inputs = (images, region_counts) if ours == model.encode_images else (token_ids, lengths)
        torch.testing.assert_close(encode(model, *inputs), ours(*inputs), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("row", ["SCAN t2i", "SCAN i2t", "BFAN equal", "BFAN prob"])
def test_the_original_loop_over_captions_equals_our_attention(row):
    import attention as bench

    sets = bench.Sets.random(4, 5, 8, torch.float64)
    expected, ours = (bench.step(compare, sets) for compare in bench.implementations(row, 8).values())
    torch.testing.assert_close(ours, expected, rtol=1e-6, atol=1e-9)


@pytest.mark.slow
def test_the_attention_benchmark_runs(tmp_path, monkeypatch):
    import attention as bench

    monkeypatch.setattr(bench, "LARGER", ())  # each starts another process
    sizes = ["--dims", "8", "--images", "3", "4", "--captions", "4", "7", "--repeats", "1"]
    bench.main([*sizes, "--rows", "BFAN equal", "--out", str(tmp_path)])
    (page,) = tmp_path.iterdir()
    assert page.read_text().count("| BFAN equal | 8 |") == 2  # times and memory


@pytest.mark.slow
def test_mining_equals_faiss(tmp_path, capsys):
    """The benchmark stops if lists differ; these sets are small enough to check all lists of both directions."""
    import mining as bench

    bench.main(["--images", "1500", "--captions", "4000", "--dim", "16", "--out", str(tmp_path)])
    (page,) = tmp_path.iterdir()
    assert "| the whole set, extrapolated, s |" in page.read_text()


@pytest.mark.slow
def test_photo_features_are_measured_and_equal(tmp_path):
    """The benchmark stops if the features differ."""
    import features as bench
    from PIL import Image

    random = torch.Generator().manual_seed(0)
    for name in "ab":
        pixels = torch.randint(0, 256, (60, 80, 3), generator=random, dtype=torch.uint8)
        Image.fromarray(pixels.numpy()).save(tmp_path / f"{name}.jpg")
    bench.main([str(tmp_path), "--turns", "1", "--out", str(tmp_path / "out")])
    (page,) = (tmp_path / "out").iterdir()
    assert "| BatchNorm folded |" in page.read_text()


def test_the_phases_of_a_second_round_run(tmp_path):
    import second_round as bench

    data, sizes = bench.random_data("heads", 60)
    loop = bench.loop_of("heads", "aoq", data, sizes, tmp_path / "loop")
    before = [parameter.detach().clone() for parameter in loop.model.parameters()]
    for call in bench.phases_of(loop).values():
        call()
    next(bench.endless_steps(loop))
    after = list(loop.model.parameters())
    assert not all(torch.equal(one, other) for one, other in zip(before, after, strict=True))


@pytest.mark.slow
def test_a_second_round_starts_from_a_first_one(tmp_path):
    """After a first round on the same data fewer hinges of members are active and fewer items have a gradient."""
    import second_round as bench

    data, sizes = bench.learnable_data(150)
    start = bench.first_round(data, sizes, 60, tmp_path / "first")
    assert start[1].captions.shape == (150, bench.LIST_LENGTHS[0])
    counts = []
    for name, weights_and_lists in (("untrained", None), ("trained", start)):
        loop = bench.loop_of("heads", "aoq", data, sizes, tmp_path / name, weights_and_lists)
        own, members, share = bench.count_active(loop, 2)
        counts.append((sum(own), sum(members), share))
    assert all(after < before for before, after in zip(*counts, strict=True))
    assert counts[1][2] > 0


@pytest.mark.slow
def test_the_table_of_a_second_round_names_the_state_of_each_row(tmp_path):
    import second_round as bench

    sizes = ["--images", "60", "--learnable-images", "150", "--first-steps", "3", "--turns", "1"]
    bench.main(["--systems", "heads", *sizes, "--out", str(tmp_path)])
    (page,) = tmp_path.iterdir()
    rows = [line for line in page.read_text().splitlines() if line.startswith("| heads")]
    assert [row.split(" | ")[0] for row in rows] == ["| heads, second round", "| heads, untrained"]
    assert "**Second round**: weights after 3 steps of triplet-sh" in page.read_text()


@pytest.mark.slow
def test_the_server_is_measured_under_load_and_recall_equals_the_evaluation(tmp_path):
    import search as bench
    from tercet.data.formats import open_data
    from tercet.data.image_io import open_image
    from tercet.search.metadata import images_in_dataset
    from tests.search.small_indexes import SCENES, index, model

    folder = index(tmp_path, "found", model("vsepp"))
    load = bench.measure_load(folder, clients=4, seconds=2)
    assert len(load.milliseconds) == 8
    assert load.errors == []
    assert 0 < load.quantile(0.5) <= load.quantile(0.95) <= max(load.milliseconds)
    retriever, items = model("vsepp").eval(), bench.open_index(folder).items
    image_files = images_in_dataset(open_data(SCENES))
    images = retriever.embed_images([open_image(image_files[item.path][0]) for item in items])
    captions = [(caption, row) for row, item in enumerate(items) for caption in item.captions]
    texts, owners = zip(*captions, strict=True)
    expected = tercet.evaluate_embeddings(images, retriever.embed_texts(texts), owners=torch.tensor(owners))
    assert bench.recall_through_index(folder) == (pytest.approx(expected["t2i_r10"]), len(texts))


def test_the_files_of_a_training_step_are_counted():
    import files_entered as bench

    files = bench.files_of_a_step()
    assert {"training/step.py", "objectives/nt_xent.py", "models/heads.py"} <= files
    assert not {file for file in files if file.startswith(("data/", "evaluation/", "cli/"))}
    assert len(files) <= 12, f"one step enters {len(files)} files: {sorted(files)}"


@pytest.mark.slow
def test_the_files_of_a_comparison_are_counted(tmp_path):
    """In all of its processes."""
    import files_entered as bench

    files = bench.files_of_a_comparison(tmp_path)
    assert {"data/formats/csv_tsv.py", "training/train.py", "comparison/report/report_page.py"} <= files
    assert len(files) <= 60, f"a comparison enters {len(files)} files: {sorted(files)}"


def test_two_trees_run_the_same_work():
    import two_trees as bench

    calls = bench.workloads()
    assert {name.split()[0] for name in calls} == {"objective", "evaluate_embeddings,", "train"}
    calls["objective triplet-sh, 128 pairs"]()
