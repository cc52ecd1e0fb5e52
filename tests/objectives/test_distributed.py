"""One process on the whole batch equals 2 and 3 ranks with unequal shards of it, averaged by DDP, to 1e-10."""

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import tercet
from tercet.objectives import AOQ_OBJECTIVES, OBJECTIVES

EVERY = [(name, reduction) for name in OBJECTIVES for reduction in ("sum", "mean")]
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
    o = tercet.objective(name, reduction=reduction)
    if paired:  # no ids: row i of both is a pair, on each rank
        captions, ids = captions[: len(images)], {}
    else:
        ids = {"image_ids": image_ids, "caption_ids": caption_ids}
    x, y, scale, bias = model(images, captions)
    scalar = o(x, y, scale=scale, bias=bias, streamed=streamed, **ids)
    scalar.backward()
    return [scalar.detach(), *(parameter.grad for parameter in model.parameters())]


def worker(rank, world, folder):
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/rendezvous", rank=rank, world_size=world)
    shards = batch(world)
    by_key = {}
    model = DistributedDataParallel(Towers())
    for name, reduction in EVERY:
        for streamed in (False, True):
            for paired in (False, True):
                key = name, reduction, streamed, paired
                by_key[key] = [tensor.clone() for tensor in results(model, shards[rank], *key)]
    torch.save(by_key, f"{folder}/rank{rank}.pt")
    dist.destroy_process_group()


@pytest.mark.parametrize("world", [2, 3])
def test_ranks_equal_one_process_on_the_whole_batch(world, tmp_path):
    mp.spawn(worker, args=(world, tmp_path), nprocs=world)
    ranks = [torch.load(tmp_path / f"rank{rank}.pt") for rank in range(world)]
    shards = batch(world)
    whole = [torch.cat(column) for column in zip(*shards, strict=True)]
    # without ids, captions are paired on each rank: take the same rows from the whole batch
    rows = [captions[: len(images)] for images, captions, _, _ in shards]
    model = Towers()
    for key in ranks[0]:
        batch_of_all = [whole[0], torch.cat(rows) if key[3] else whole[1], *whole[2:]]
        expected = results(model, batch_of_all, *key)
        for rank in ranks:
            for actual, one in zip(rank[key], expected, strict=True):
                torch.testing.assert_close(actual, one, rtol=1e-10, atol=1e-10, msg=lambda m, key=key: f"{key}: {m}")


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
    o = tercet.objective(name, reduction=reduction)
    options = {"scale": scale, "bias": bias, "streamed": streamed, "mined": mined}
    scalar = o(x[: len(images)], y[: len(captions)], **options, **ids)
    scalar.backward()
    return [scalar.detach(), *(parameter.grad for parameter in model.parameters())]


MINED_KEYS = [
    (n, r, s, p) for n in AOQ_OBJECTIVES for r in ("sum", "mean") for s in (False, True) for p in (False, True)
]


def mined_worker(rank, world, folder):
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/rendezvous", rank=rank, world_size=world)
    model = DistributedDataParallel(Towers())
    by_key = {}
    for key in MINED_KEYS:
        results_ = results_with_mined(model, batch(world)[rank], mined_features(world, key[3])[rank], *key)
        by_key[key] = [tensor.clone() for tensor in results_]
    torch.save(by_key, f"{folder}/rank{rank}.pt")
    dist.destroy_process_group()


@pytest.mark.parametrize("world", [2, 3])
def test_ranks_with_mined_negatives_equal_one_process(world, tmp_path):
    """Includes positives across ranks: each rank has the mined negatives of its own images' pairs."""
    mp.spawn(mined_worker, args=(world, tmp_path), nprocs=world)
    ranks = [torch.load(tmp_path / f"rank{rank}.pt") for rank in range(world)]
    shards, model = batch(world), Towers()
    for key in MINED_KEYS:
        whole = [torch.cat(column) for column in zip(*shards, strict=True)]
        if key[3]:
            whole[1] = torch.cat([captions[: len(images)] for images, captions, _, _ in shards])
        negatives = [torch.cat(column) for column in zip(*mined_features(world, key[3]), strict=True)]
        expected = results_with_mined(model, whole, negatives, *key)
        for rank in ranks:
            for actual, one in zip(rank[key], expected, strict=True):
                torch.testing.assert_close(actual, one, rtol=1e-10, atol=1e-10, msg=lambda m, key=key: f"{key}: {m}")
