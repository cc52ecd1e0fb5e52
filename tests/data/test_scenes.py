"""The generated world is the same every time, and its captions tell the truth."""

import torch

from tercet.data import paired_batches, scenes
from tercet.data.scenes import SHAPES


def test_the_same_arguments_give_the_same_scenes_and_splits_differ():
    assert scenes("test", 40).checksum() == scenes("test", 40).checksum()
    assert scenes("test", 40).checksum() != scenes("train", 40).checksum()


def test_five_captions_each_name_a_shape():
    data = scenes("train", 30)
    assert torch.equal(data.owners, torch.arange(30).repeat_interleave(5))
    shapes = {word for words in SHAPES for word in words}
    assert all(shapes & set(text.split()) for text in data.texts)


def test_an_epoch_shows_every_caption_once_with_its_image():
    data = scenes("train", 40)
    seen = []
    for batch in paired_batches(data, 20, seed=0, epoch=0):
        assert torch.equal(batch.image_ids, batch.caption_ids)
        assert torch.equal(batch.images, data.images[batch.image_ids])
        seen.append(batch.caption_ids)
    assert torch.equal(torch.cat(seen).sort().values, data.owners)


def test_batches_depend_on_seed_and_epoch_alone():
    data = scenes("train", 40)
    first = [b.caption_ids for b in paired_batches(data, 20, seed=3, epoch=1)]
    again = [b.caption_ids for b in paired_batches(data, 20, seed=3, epoch=1)]
    other = [b.caption_ids for b in paired_batches(data, 20, seed=3, epoch=2)]
    assert all(torch.equal(a, b) for a, b in zip(first, again, strict=True))
    assert not all(torch.equal(a, b) for a, b in zip(first, other, strict=True))
