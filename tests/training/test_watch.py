"""The watcher: the counts of `tercet.cocos` from inside any loop, at its interval, and its warnings."""

import pytest
import torch
from torch import nn

import tercet
from tercet.training.watch import EVERY


def embeddings(images=6, captions=6, dim=4):
    generator = torch.Generator().manual_seed(0)
    return [nn.functional.normalize(torch.randn(n, dim, generator=generator), dim=1) for n in (images, captions)]


def test_a_plain_loop_logs_the_counts_of_cocos():
    lines = []
    watcher = tercet.watch("nt-xent", every=2, log=lines.append, temperature=0.2)
    (x, y), ids = embeddings(), torch.tensor([1, 2, 1, 3, 4, 5])
    matching = torch.zeros(6, 6, dtype=torch.bool)
    matching[0, 1] = True
    returned = [watcher(x, y, image_ids=ids, caption_ids=ids, matching=matching) for _ in range(4)]
    assert [counts is not None for counts in returned] == [True, False, True, False]
    objective = tercet.objective("nt-xent", temperature=0.2)
    expected = tercet.cocos(objective, x @ y.T, ids[:, None] == ids, matching=matching)
    for direction, counts in expected.items():
        for name, count in counts.items():
            assert returned[0][f"watch/{direction}_{name}"] == pytest.approx(count)
    assert returned[0]["watch/monitor"] == pytest.approx(objective.monitor(x @ y.T, ids[:, None] == ids).item())
    assert lines[0].startswith("watch: step 1: monitor ")
    shares = [expected[direction]["matching_share"] for direction in ("i2t", "t2i")]
    assert f"push on known matches {shares[0]:.1%} i2t {shares[1]:.1%} t2i" in lines[0]
    assert lines[1].startswith("watch: step 3: ")


def test_it_has_no_gradient_and_changes_nothing():
    x, y = (side.requires_grad_() for side in embeddings())
    before = torch.random.get_rng_state()
    tercet.watch("cir/sig-ms", every=1, log=lambda line: None)(x, y)
    assert torch.equal(before, torch.random.get_rng_state())
    assert x.grad is None


class ClipLoss(nn.Module):
    def forward(self, image_features, text_features, logit_scale):
        return (logit_scale * image_features @ text_features.T).log_softmax(dim=1).diagonal().mean().neg()


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.logit_scale = nn.Parameter(torch.tensor(2.0))

    def forward(self, x, y):
        return {"image_embeds": x, "text_embeds": y}


@pytest.mark.parametrize("attached", ["loss by position", "loss by name", "model"])
def test_attached_once_it_sees_every_forward_pass_with_gradients(attached):
    lines = []
    watcher = tercet.watch("nt-xent", every=1, log=lines.append)
    x, y = embeddings()
    module = Model() if attached == "model" else ClipLoss()
    handle = watcher.attach(module)
    scale = torch.tensor(2.0).exp()
    if attached == "model":
        module(x, y)
    elif attached == "loss by name":
        module(image_features=x, text_features=y, logit_scale=scale)
    else:
        module(x, y, scale)
    with torch.no_grad():
        module(x, y, scale) if attached != "model" else module(x, y)
    expected = tercet.cocos(tercet.objective("nt-xent", temperature=1.0), scale * (x @ y.T))
    assert watcher.latest["watch/i2t_effective"] == pytest.approx(expected["i2t"]["effective"], rel=1e-5)
    assert len(lines) == 1
    handle.remove()
    module(x, y, scale) if attached != "model" else module(x, y)
    assert len(lines) == 1


def test_a_module_without_embeddings_is_named():
    module = nn.Linear(4, 3)
    tercet.watch("triplet").attach(module)
    with pytest.raises(ValueError, match="Linear neither returns image_embeds and text_embeds or"):
        module(embeddings()[0])


def test_counts_are_taken_once():
    watcher = tercet.watch("triplet", every=3, log=lambda line: None)
    assert watcher.take() == {}
    taken = []
    for _ in range(4):
        watcher(*embeddings())
        taken.append(watcher.take().get("watch/step"))
    assert taken == [1, None, None, 4]


def test_collapse_and_nan_are_warned_of_in_words_of_any_loop():
    lines = []
    watcher = tercet.watch("triplet-sh", every=1, log=lines.append)
    x = nn.functional.normalize(torch.ones(6, 4), dim=1)
    for _ in range(7):
        watcher(x, x)
    watcher(x * torch.nan, x)
    warnings = [line for line in lines if "monitor 0" not in line and "effective" not in line]
    assert [line.split(": ")[2] for line in warnings] == ["collapse", "NaN or infinity in the embeddings"]
    assert "--" not in "".join(lines)


def test_a_batch_whose_matrix_would_be_too_large_is_not_measured(monkeypatch):
    monkeypatch.setattr("tercet.training.watch.MAX_ENTRIES", 35)
    lines = []
    watcher = tercet.watch("triplet", every=1, log=lines.append)
    assert [watcher(*embeddings()) for _ in range(3)] == [None] * 3
    assert lines == ["watch: 6 x 6 pairs are not measured: S may have up to 35 entries"]


def test_the_interval_is_a_number_of_steps():
    assert tercet.watch("triplet").every == EVERY
    with pytest.raises(ValueError, match="every must be a number of steps from 1, got 0"):
        tercet.watch("triplet", every=0)
