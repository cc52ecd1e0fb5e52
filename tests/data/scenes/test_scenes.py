"""Generated scenes: deterministic, with true captions and exact ground truth."""

import itertools

import numpy as np
import pytest
import torch

import tercet
from tercet.data.dataset import paired
from tercet.data.formats import open_data
from tercet.data.scenes import scenes, scenes_data_set
from tercet.data.scenes import world as w
from tercet.data.scenes.render import GROUND, REGIONS, RGB, SIDE
from tercet.data.scenes.world import UNSPECIFIED


@pytest.fixture(scope="module")
def small():
    return scenes("test", 60)


def test_the_same_arguments_give_the_same_scenes_and_splits_differ(small):
    checksums = [paired("scenes", split.as_split("regions")).checksum() for split in (small, scenes("test", 60))]
    assert checksums[0] == checksums[1]
    assert checksums[0] != paired("scenes", scenes("train", 60).as_split("regions")).checksum()
    assert (
        small.as_split().image_files.sources[3].content()
        == scenes("test", 60).as_split().image_files.sources[3].content()
    )


def loop_truth(world, claims, scene, caption):
    """From the definition, one pair at a time."""
    objects = [o for o in range(w.MAX_OBJECTS) if world.objects[scene, o, w.SHAPE] != w.ABSENT]
    if claims.count[caption] != UNSPECIFIED and claims.count[caption] != len(objects):
        return False
    if claims.background[caption] != UNSPECIFIED and claims.background[caption] != world.backgrounds[scene]:
        return False
    for chosen in itertools.permutations(objects, int(claims.mentioned[caption])):
        matches = all(
            value in (UNSPECIFIED, world.objects[scene, obj, attribute])
            for obj, mention in zip(chosen, claims.objects[caption], strict=False)
            for attribute, value in enumerate(mention.tolist())
        )
        if matches and relation_holds(world.centres[scene], chosen, int(claims.relation[caption])):
            return True
    return False


def relation_holds(centres, chosen, relation):
    if relation == UNSPECIFIED:
        return True
    (ax, ay), (bx, by) = centres[chosen[0]], centres[chosen[1]]
    return {w.LEFT: bx - ax, w.RIGHT: ax - bx, w.ABOVE: by - ay, w.BELOW: ay - by}[relation] > w.MIN_DISTANCE


def test_truth_equals_loops_over_the_definition(small):
    true_pairs = small.true_pairs
    for scene in range(60):
        for caption in range(0, 300, 3):
            assert true_pairs[scene, caption] == loop_truth(small.world, small.claims, scene, caption)


def test_the_truth_of_a_batch_is_a_submatrix_of_the_truth_of_the_split(small):
    images, captions = torch.tensor([5, 59, 0]), torch.tensor([7, 299, 120, 7])
    assert np.array_equal(small.truth(images, captions).numpy(), small.true_pairs[np.ix_(images, captions)])


def test_objects_do_not_overlap():
    boxes = scenes("train", 300).world.boxes()
    for a, b in itertools.combinations(range(w.MAX_OBJECTS), 2):
        apart = (boxes[:, a, 2:] <= boxes[:, b, :2] + 1e-9) | (boxes[:, b, 2:] <= boxes[:, a, :2] + 1e-9)
        empty = (boxes[:, a, 0] == boxes[:, a, 2]) | (boxes[:, b, 0] == boxes[:, b, 2])
        assert (apart.any(axis=1) | empty).all()


@pytest.mark.slow
def test_the_difficulty_is_as_tuned(tmp_path):
    """Tuned with triplet-sh alone: R@1 between 30 and 70 in both directions, default heads, validation scenes."""
    run = tercet.train(data="scenes", epochs=6, test_split="val", validation_split="test", runs=tmp_path)
    assert 30 < run.metrics["t2i_r1"] < 70
    assert 30 < run.metrics["i2t_r1"] < 70


def test_every_caption_is_true_of_its_own_scene_and_many_of_others():
    split = scenes("val", 1000)
    own = split.true_pairs[split.owners, np.arange(5000)]
    assert own.all()
    images_per_caption = split.true_pairs.sum(axis=0)
    assert 3 < images_per_caption.mean() < 20  # ambiguous
    assert np.median(images_per_caption) < 5  # but most captions are specific


def words_of(table):
    return [set(words) for words in table]


def test_the_words_express_the_claims(small):
    """A caption has a word for every claimed attribute value, and no word of any other value."""
    for caption, text in enumerate(small.texts):
        mentioned = small.claims.objects[caption, : small.claims.mentioned[caption]]
        for attribute, table in enumerate(w.ATTRIBUTES):
            expressed = {value for value, words in enumerate(words_of(table)) if words & set(text.split())}
            assert expressed == set(mentioned[:, attribute].tolist()) - {UNSPECIFIED}


def test_a_relation_in_the_opposite_direction_is_the_same_claim(small):
    """ "a left of b" is written as such or as "b right of a": the first noun tells which."""
    directions = set()
    for caption, text in enumerate(small.texts):
        relation = int(small.claims.relation[caption])
        if relation == UNSPECIFIED:
            continue
        expressed = next(r for r, words in enumerate(w.RELATIONS) if any(f" {word} " in text for word in words))
        assert expressed in (relation, w.OPPOSITE[relation])
        first = small.claims.objects[caption, 0 if expressed == relation else 1]
        before = text.split(next(f" {word} " for word in w.RELATIONS[expressed] if f" {word} " in text))[0]
        for attribute, value in enumerate(first.tolist()):
            if value != UNSPECIFIED:
                assert any(f" {word}" in f" {before}" for word in w.ATTRIBUTES[attribute][value])
        directions.add(expressed == relation)
    assert directions == {True, False}


def test_images_show_the_colours_of_their_objects(small):
    split = small.as_split()
    for scene in range(10):
        pixels = np.asarray(split.image_files.open(scene)).astype(int)
        assert pixels.shape == (SIDE, SIDE, 3)
        ground = np.array(GROUND[small.world.backgrounds[scene]])
        assert np.abs(np.median(pixels.reshape(-1, 3), axis=0) - ground).max() < 12
        for obj in small.world.objects[scene]:
            if obj[w.SHAPE] != w.ABSENT:
                colour = np.array(RGB[obj[w.COLOUR]])
                assert (np.abs(pixels - colour).max(axis=-1) <= 2).sum() > 20


def test_objects_are_apart_and_inside_the_image(small):
    boxes = scenes("train", 500).world.boxes()
    assert boxes.min() > 0 - 0.02
    assert boxes.max() < 1 + 0.02
    centres = small.world.centres
    for a, b in itertools.combinations(range(w.MAX_OBJECTS), 2):
        assert (np.abs(centres[:, a] - centres[:, b]).max(axis=1) > w.MIN_DISTANCE).all()


def test_regions_are_detections_with_boxes_and_distractors(small):
    split = small.as_split("regions")
    assert split.features.shape == (60, REGIONS, 256)
    boxes = split.boxes.raw(np.arange(60))
    assert ((boxes[..., :2] <= boxes[..., 2:] + 0.1) & (boxes >= 0).all() & (boxes <= 1).all()).all()
    # A detection of an object has its box: for most objects one of the boxes is very near.
    object_boxes = small.world.boxes()
    near = [
        np.abs(boxes[scene] - object_boxes[scene, obj]).max(axis=1).min() < 0.08
        for scene in range(60)
        for obj in range(int(small.world.counts()[scene]))
    ]
    assert 0.85 < np.mean(near) < 1.0  # some are missed


def test_sizes_and_features_are_given_by_name():
    data = scenes_data_set(30)
    assert {name: len(split.image_names) for name, split in data.splits.items()} == {"train": 30, "val": 10, "test": 10}
    assert open_data("scenes:30").splits["val"].texts == data.splits["val"].texts
    assert open_data("scenes:30", features="regions").splits["val"].features.shape == (10, REGIONS, 256)
    with pytest.raises(ValueError, match="features of scenes must be global or regions, got 'pixels'"):
        open_data("scenes:30", features="pixels")
    with pytest.raises(ValueError, match="at least 3 training scenes"):
        open_data("scenes:2")


def test_they_are_generated_once_and_no_run_modifies_them(tmp_path):
    data = open_data("scenes:40")
    before = {name: paired("scenes", split).checksum() for name, split in data.splits.items()}
    given = {"batch_size": 20, "epochs": 1, "model_settings": {"embed_dim": 8}, "runs": tmp_path}
    assert tercet.train("scenes:40", **given).metrics
    assert open_data("scenes:40") is data
    assert {name: paired("scenes", split).checksum() for name, split in data.splits.items()} == before


def test_captions_have_near_duplicates_and_none_is_empty():
    texts = scenes("train", 1000).texts
    assert all(texts)
    assert len(set(texts)) < len(texts)
    assert len(set(texts)) > 0.8 * len(texts)
