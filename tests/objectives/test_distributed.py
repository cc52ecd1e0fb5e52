"""One process on the whole batch equals 2 and 3 ranks with unequal shards of it, averaged by DDP, to 1e-10."""

from datetime import timedelta
from itertools import product

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from tercet.objectives import AOQ_OBJECTIVES, OBJECTIVES
from tercet.training.runtime import average_gradients
from tests.objectives.named_settings import named

IMAGES = [4, 1, 3]  # rows of each rank
CAPTIONS = [5, 4, 6]


class Towers(nn.Module):
    """Two linear encoders and a learned scale and bias: parameters that DDP averages."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.image, self.caption = nn.Linear(5, 4).double(), nn.Linear(5, 4).double()
        self.scale, self.bias = nn.Parameter(torch.tensor(1.3).double()), nn.Parameter(torch.tensor(0.1).double())

    def forward(self, images, captions):
        encoded = (self.image(images), self.caption(captions))
        return *(nn.functional.normalize(embeddings) for embeddings in encoded), self.scale, self.bias


def batch(world):
    """The shard of each rank; ids repeat within and across ranks, and one image has no caption on any rank."""
    generator = torch.Generator().manual_seed(1)
    images = torch.randn(sum(IMAGES[:world]), 5, generator=generator, dtype=torch.float64)
    captions = torch.randn(sum(CAPTIONS[:world]), 5, generator=generator, dtype=torch.float64)
    image_ids = torch.arange(len(images)) * 10
    image_ids[-1] = image_ids[0]
    caption_ids = image_ids[torch.arange(len(captions)) * 3 % (len(images) - 1)]
    columns = ((images, IMAGES), (captions, CAPTIONS), (image_ids, IMAGES), (caption_ids, CAPTIONS))
    return list(zip(*(column.split(sizes[:world]) for column, sizes in columns), strict=True))


def results(model, shard, name, reduction, streamed, paired):
    """The scalar and every parameter's gradient."""
    images, captions, image_ids, caption_ids = shard
    model.zero_grad()
    o = named(name, reduction=reduction)
    if paired:  # no ids: row i of both is a pair, on each rank
        captions, ids = captions[: len(images)], {}
    else:
        ids = {"image_ids": image_ids, "caption_ids": caption_ids}
    x, y, scale, bias = model(images, captions)
    scalar = o(x, y, scale=scale, bias=bias, streamed=streamed, **ids)
    scalar.backward()
    return [scalar.detach(), *(parameter.grad for parameter in model.parameters())]


def mined_features(world, paired):
    """Features of the mined negatives of every positive pair of the whole batch, split by rank."""
    shards = batch(world)
    ids = torch.cat([shard[3] for shard in shards])
    counts = [len(shard[0]) if paired else int((shard[2][:, None] == ids[None]).sum()) for shard in shards]
    generator = torch.Generator().manual_seed(7)
    features = [torch.randn(sum(counts), 2, 5, generator=generator, dtype=torch.float64) for _ in range(2)]
    return list(zip(*(column.split(counts) for column in features), strict=True))


def results_with_mined(model, shard, negatives, name, reduction, streamed, paired):
    images, captions, image_ids, caption_ids = shard
    model.zero_grad()
    captions, ids = (
        (captions[: len(images)], {}) if paired else (captions, {"image_ids": image_ids, "caption_ids": caption_ids})
    )
    together = [torch.cat([own, mined.flatten(0, 1)]) for own, mined in zip((images, captions), negatives, strict=True)]
    x, y, scale, bias = model(*together)
    mined = (x[len(images) :].unflatten(0, (-1, 2)), y[len(captions) :].unflatten(0, (-1, 2)))
    o = named(name, reduction=reduction)
    options = {"scale": scale, "bias": bias, "streamed": streamed, "mined": mined}
    scalar = o(x[: len(images)], y[: len(captions)], **options, **ids)
    scalar.backward()
    return [scalar.detach(), *(parameter.grad for parameter in model.parameters())]


HOW = list(product(("sum", "mean"), (False, True), (False, True)))  # reduction, streamed, paired
# Every objective with two of the eight ways by default, opposite in all three; with all of them in the slow tests.
FEW, FEW_MINED = (
    [(name, *HOW[way]) for n, name in enumerate(names) for way in (n % 4, 7 - n % 4)]
    for names in (OBJECTIVES, AOQ_OBJECTIVES)
)
ALL, ALL_MINED = ([(name, *how) for name in names for how in HOW] for names in (OBJECTIVES, AOQ_OBJECTIVES))


def worker(rank, world, folder, keys, mined_keys):
    torch.set_num_threads(1)
    minute = timedelta(minutes=1)  # ranks that wait for each other fail
    rendezvous = f"file://{folder}/rendezvous"
    dist.init_process_group("gloo", init_method=rendezvous, rank=rank, world_size=world, timeout=minute)
    shard = batch(world)[rank]
    model = DistributedDataParallel(Towers())
    plain = {key: clones(results(model, shard, *key)) for key in keys}
    negatives = {paired: mined_features(world, paired)[rank] for paired in (False, True)}
    mined = {key: clones(results_with_mined(model, shard, negatives[key[3]], *key)) for key in mined_keys}
    if world == 2 and keys == FEW:
        empty = [without_rows(rank, streamed) for streamed in (False, True)]
        torch.save((errors(rank), empty, partial_gradients(rank)), f"{folder}/unequal{rank}.pt")
    torch.save((plain, mined), f"{folder}/rank{rank}.pt")
    dist.destroy_process_group()


# What must be equal on all ranks: the arguments of a call on rank 0 and on rank 1, and what both say.
ROWS = torch.eye(3, 4, dtype=torch.float64)
DIFFERENT = {
    "dim": ((ROWS, ROWS), (ROWS[:, :2], ROWS[:, :2]), "size of axis 1 of images: 4 on rank 0 and 2 on rank 1"),
    "dtype": ((ROWS, ROWS), (ROWS.float(), ROWS.float()), "dtype of images: float64 on rank 0 and float32 on rank 1"),
    "ids": (
        (ROWS, ROWS, {"owners": torch.arange(3)}),
        (ROWS, ROWS, {"image_ids": torch.arange(3), "caption_ids": torch.arange(3)}),
        "image_ids=: not given on rank 0 and given on rank 1",
    ),
    "scale": ((ROWS, ROWS, {"scale": 2.0}), (ROWS, ROWS), "scale=: given on rank 0 and not given on rank 1"),
}


def errors(rank):
    """The error of this rank for every difference."""
    told = {}
    for name, case in DIFFERENT.items():
        images, captions, *given = case[rank]
        with pytest.raises(ValueError, match="on rank") as raised:
            named("nt-xent")(images, captions, **(given[0] if given else {}))
        told[name] = str(raised.value)
    with torch.set_grad_enabled(rank == 0), pytest.raises(ValueError, match="gradients: enabled on rank 0") as raised:
        named("nt-xent")(ROWS, ROWS)
    told["gradients"] = str(raised.value)
    with pytest.raises(ValueError, match=r"captions|refused") as raised:
        named("nt-xent")(ROWS, ROWS[: 3 - rank])
    told["refused"] = str(raised.value)
    return told


def without_rows(rank, streamed):
    """The gradient of rank 0, if rank 1 has neither rows nor a gradient; and what rank 1 computes."""
    count = 3 if rank == 0 else 0
    images, captions = ROWS[:count].clone().requires_grad_(rank == 0), ROWS[:count].flip(0)
    scalar = named("cir/sig-ms")(images, captions, streamed=streamed)
    scalar.backward()
    return [scalar.detach(), torch.zeros(0) if images.grad is None else images.grad]


class Halves(nn.Module):
    """On rank 0 one half gets a gradient, on rank 1 the other; the third gets none anywhere."""

    def __init__(self):
        super().__init__()
        self.parts = nn.ParameterList(nn.Parameter(torch.full((n + 1,), 2.0)) for n in range(3))


def partial_gradients(rank):
    model = Halves()
    model.parts[rank].sum().backward()
    average_gradients(model)
    return [parameter.grad for parameter in model.parameters()]


def clones(tensors):
    return [tensor.clone() for tensor in tensors]


@pytest.fixture(
    scope="module",
    params=[
        (2, FEW, FEW_MINED),
        pytest.param((2, ALL, ALL_MINED), marks=pytest.mark.slow),
        pytest.param((3, ALL, ALL_MINED), marks=pytest.mark.slow),
    ],
    ids=["2 ranks", "2 ranks, all", "3 ranks, all"],
)
def by_rank(request, tmp_path_factory):
    """The number of ranks, and the results of each rank without and with mined negatives."""
    folder, world = tmp_path_factory.mktemp("ranks"), request.param[0]
    mp.spawn(worker, args=(world, folder, *request.param[1:]), nprocs=world)
    ranks = zip(*(torch.load(folder / f"rank{rank}.pt") for rank in range(world)), strict=True)
    return world, *ranks, folder


def assert_equal(ranks, key, expected):
    for rank in ranks:
        for actual, one in zip(rank[key], expected, strict=True):
            torch.testing.assert_close(actual, one, rtol=1e-10, atol=1e-10, msg=lambda m, key=key: f"{key}: {m}")


def whole_batch(world, paired):
    """The shards together; without ids, captions are paired on each rank: the same rows of the whole batch."""
    shards = batch(world)
    whole = [torch.cat(column) for column in zip(*shards, strict=True)]
    if paired:
        whole[1] = torch.cat([captions[: len(images)] for images, captions, _, _ in shards])
    return whole


def test_ranks_equal_one_process_on_the_whole_batch(by_rank):
    world, ranks, _, _ = by_rank
    model = Towers()
    assert {key[0] for key in ranks[0]} == set(OBJECTIVES)
    for key in ranks[0]:
        assert_equal(ranks, key, results(model, whole_batch(world, key[3]), *key))


def test_ranks_with_mined_negatives_equal_one_process(by_rank):
    """Includes positives across ranks: each rank has the mined negatives of its own images' pairs."""
    world, _, ranks, _ = by_rank
    model = Towers()
    assert {key[0] for key in ranks[0]} == set(AOQ_OBJECTIVES)
    for key in ranks[0]:
        negatives = [torch.cat(column) for column in zip(*mined_features(world, key[3]), strict=True)]
        assert_equal(ranks, key, results_with_mined(model, whole_batch(world, key[3]), negatives, *key))


@pytest.fixture
def unequal(by_rank):
    """What ranks 0 and 1 got where they differ."""
    if not (by_rank[-1] / "unequal0.pt").exists():
        pytest.skip("tried once")
    return [torch.load(by_rank[-1] / f"unequal{rank}.pt") for rank in range(2)]


def test_what_differs_between_ranks_is_one_line_on_every_rank(unequal):
    (told, *_), (other, *_) = unequal
    for name, (_, _, expected) in DIFFERENT.items():
        assert expected in told[name]
        assert other[name] == told[name]
    assert "enabled on rank 0 and disabled on rank 1" in told["gradients"] == other["gradients"]
    assert "the batch of rank 1 was refused there" in told["refused"]
    assert "3 images and 2 captions are not paired" in other["refused"]


def test_a_rank_without_rows_and_without_a_gradient_does_not_hold_up_the_others(unequal):
    for n, streamed in enumerate((False, True)):
        images = ROWS.clone().requires_grad_()
        scalar = named("cir/sig-ms")(images, ROWS.flip(0), streamed=streamed)
        scalar.backward()
        for rank in range(2):
            torch.testing.assert_close(unequal[rank][1][n][0], scalar.detach())
        torch.testing.assert_close(unequal[0][1][n][1], 2 * images.grad)  # DDP divides by the number of ranks


def test_gradients_that_some_ranks_lack_are_averaged(unequal):
    for rank in range(2):
        first, second, third = unequal[rank][2]
        assert first.tolist() == [0.5]
        assert second.tolist() == [0.5, 0.5]
        assert third is None
