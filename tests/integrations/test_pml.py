"""pytorch-metric-learning, the real one: parity, miners, memory, two processes, the same-tensor trap."""

import pytest
import torch
from torch import nn

import tercet
from tests.integrations.processes import (
    IDS,
    OBJECTIVES,
    ROWS,
    gradient_of,
    in_processes,
    plain_gradient,
    relative_difference,
)

pytest.importorskip("pytorch_metric_learning", reason="has an environment of its own: make test-integrations")
pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("default")]


class Towers(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.image, self.caption = nn.Linear(6, 4).double(), nn.Linear(5, 4).double()

    def forward(self, rows):
        generator = torch.Generator().manual_seed(1)
        images, captions = (torch.randn(len(IDS), d, generator=generator, dtype=torch.float64) for d in (6, 5))
        return self.image(images[rows]), self.caption(captions[rows])


def normalized(model):
    return lambda rows: tuple(nn.functional.normalize(x, dim=1) for x in model(rows))


def losses(name, **settings):
    return tercet.integrations.pml.Loss(name, **settings)


def gradients(rank, world):
    from pytorch_metric_learning.utils.distributed import DistributedLossWrapper
    from torch.nn.parallel import DistributedDataParallel

    found = {}
    if world > 1:
        torch.distributed.init_process_group("gloo")
    for name in OBJECTIVES:
        for accumulation in (1, 2):
            model = Towers()
            forward = DistributedDataParallel(model) if world > 1 else model
            loss = DistributedLossWrapper(losses(name)) if world > 1 else losses(name)
            for batch in torch.arange(ROWS * accumulation).split(ROWS):
                rows = batch.chunk(world)[rank]
                images, captions = forward(rows)
                (loss(images, IDS[rows], ref_emb=captions, ref_labels=IDS[rows]) / accumulation).backward()
            found[f"{name} {accumulation}"] = gradient_of(model)
    return found


@pytest.mark.parametrize("world", [1, 2])
def test_gradients_equal_those_of_plain_pytorch(world):
    """In two processes inside the host's DistributedLossWrapper, which gathers."""
    model = Towers()
    for found in in_processes(world, gradients):
        for key, gradient in found.items():
            name, accumulation = key.split()
            expected = plain_gradient(model, normalized(model), name, int(accumulation))
            assert relative_difference(gradient, expected) < 1e-10, key


def value_and_gradient(model, loss, *arguments):
    model.zero_grad()
    images, captions = model(torch.arange(ROWS))
    value = loss(images, captions)
    value.backward()
    return torch.cat([value.detach().reshape(1), gradient_of(model)])


def test_nt_xent_equals_the_loss_of_the_host_both_ways():
    from pytorch_metric_learning.losses import NTXentLoss

    model, labels, theirs = Towers(), torch.arange(ROWS), NTXentLoss(temperature=0.1)
    other = labels.clone()  # the same tensor would make it 0

    def both_ways(x, y):
        return 0.5 * theirs(x, labels, ref_emb=y, ref_labels=other) + 0.5 * theirs(
            y, labels, ref_emb=x, ref_labels=other
        )

    expected = value_and_gradient(model, both_ways)
    ours = losses("nt-xent")
    actual = value_and_gradient(model, lambda x, y: ours(x, labels, ref_emb=y, ref_labels=other))
    assert relative_difference(actual, expected) < 1e-10


def test_one_modality_is_compared_with_itself_and_not_with_its_own_rows():
    from pytorch_metric_learning.losses import NTXentLoss

    model, labels = Towers(), torch.arange(ROWS) // 2
    expected = value_and_gradient(model, lambda x, y: NTXentLoss(temperature=0.1)(x, labels))
    actual = value_and_gradient(model, lambda x, y: losses("nt-xent")(x, labels))
    assert relative_difference(actual, expected) < 1e-10


def test_one_tensor_of_labels_for_both_sides_is_not_silently_zero():
    from pytorch_metric_learning.losses import NTXentLoss

    (images, captions), labels = Towers()(torch.arange(ROWS)), torch.arange(ROWS)
    assert NTXentLoss()(images, labels, ref_emb=captions, ref_labels=labels) == 0
    ours = losses("nt-xent")
    same = ours(images, labels, ref_emb=captions, ref_labels=labels)
    assert same > 0
    assert same == ours(images, labels, ref_emb=captions, ref_labels=labels.clone())


@pytest.mark.parametrize("miner", ["MultiSimilarityMiner", "TripletMarginMiner"])
def test_pairs_that_a_miner_does_not_name_are_ignored(miner):
    from pytorch_metric_learning import miners

    (images, captions), ids = Towers()(torch.arange(ROWS)), IDS[:ROWS]
    named = getattr(miners, miner)()(images, ids, captions, ids.clone())
    anchors, positive, *others = named
    negative_anchors, negative = others if len(others) == 2 else (anchors, others[0])
    positives, negatives = torch.zeros(2, ROWS, ROWS, dtype=torch.bool)
    positives[anchors, positive] = True
    negatives[negative_anchors, negative] = True
    assert 0 < negatives.sum() < ROWS * ROWS - positives.sum()
    S = nn.functional.normalize(images, dim=1) @ nn.functional.normalize(captions, dim=1).T
    expected = tercet.objective("triplet").on_similarity(S, positives, ~(positives | negatives))
    actual = losses("triplet")(images, ids, named, captions, ids.clone())
    torch.testing.assert_close(actual, expected)


def test_the_memory_of_earlier_batches():
    """Its candidates are those of the batch and of earlier ones, without an embedding itself."""
    from tercet.integrations import pml

    model, ids = Towers(), IDS
    memory = pml.CrossBatchMemory(losses("nt-xent"), embedding_size=4, memory_size=16)
    first, second = model(torch.arange(ROWS))[0], model(torch.arange(ROWS, 2 * ROWS))[0]
    memory(first, ids[:ROWS])
    actual = memory(second, ids[ROWS:])
    every = nn.functional.normalize(torch.cat([first, second]), dim=1)
    S = nn.functional.normalize(second, dim=1) @ every.T
    itself = torch.arange(ROWS)[:, None] + ROWS == torch.arange(2 * ROWS)
    expected = tercet.objective("nt-xent").on_similarity(S, ids[ROWS:, None] == ids, itself)
    torch.testing.assert_close(actual, expected)


def test_without_labels_and_without_pairs_it_is_refused():
    with pytest.raises(ValueError, match="give labels, equal for positives, or indices_tuple"):
        losses("nt-xent")(torch.randn(4, 3))
