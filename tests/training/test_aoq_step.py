"""A second round with mined negatives: the step, exact resume, mining again, several processes."""

import json
from functools import cache

import numpy as np
import pytest
import torch
from torch.testing import assert_close

import tercet
from tercet.data import paired
from tercet.data.collate import Collator
from tercet.data.hard_negatives import HardNegativeSampler, MinedTable, open_mined
from tercet.data.samplers import image_batches, pair_batches
from tercet.data.scenes import scenes
from tercet.data.text.tokenized import tokenize_captions
from tercet.data.text.vocabulary import build_vocabulary
from tercet.models import build
from tercet.models.cpu_kernels import sparse_linear
from tercet.models.cpu_kernels.sparse_linear import rows_with_gradient
from tercet.training import runtime
from tercet.training.aoq_step import MinedMembers, hard_negative_sampler
from tercet.training.mine_run import mine_table, remine
from tercet.training.settings import MineSettings, defaults_for, train_settings
from tercet.training.step import Step
from tests.commands import tercet as command
from tests.objectives.test_aoq import looped
from tests.training.small_training import SMALL
from tests.training.test_runtime import train as torchrun
from tests.training.test_train import assert_same_run, interrupted_run, only_run


def random_table(data, seed=0):
    """Random lists of negatives, which are enough for a step."""
    generator = np.random.default_rng(seed)
    images, captions, owners = len(data.images), len(data.owners), data.owners.numpy()
    of_images = [generator.permutation(np.flatnonzero(owners != i))[:20] for i in range(images)]
    of_captions = [generator.permutation([i for i in range(images) if i != owners[c]])[:8] for c in range(captions)]
    return MinedTable(np.array(of_images, dtype=np.int32), np.array(of_captions, dtype=np.int32), "a table", "0")


def data_and_model(system):
    split = scenes("train", 30).as_split("regions" if system in ("bfan", "scan") else "global")
    if system == "heads":
        data = paired("scenes", split)
        model = build("heads", image_dim=data.images.shape[-1], caption_dim=data.captions.shape[-1], embed_dim=6)
    else:
        words = build_vocabulary(split.texts, 1)
        data = paired("scenes", split, captions=tokenize_captions(split.texts, words))
        more = {"measure": "order"} if system == "order" else {}
        name = "vsepp" if system == "order" else system
        model = build(name, vocab_size=len(words), image_dim=data.images.shape[-1], embed_dim=6, word_dim=5, **more)
    return data, model.double()


def to_float64(batch):
    from dataclasses import replace

    def double(items):
        return replace(
            items, **{n: v.double() for n, v in vars(items).items() if torch.is_tensor(v) and v.is_floating_point()}
        )

    return replace(double(batch), mined=None if batch.mined is None else double(batch.mined))


SYSTEMS, MINED_OBJECTIVES = ("heads", "bfan", "scan", "order"), ("off-tri", "off-quin", "aoq")
BATCHES = [("pairs", None), ("diagonal", 7), ("several captions", 7), ("equal text", None)]
# Every system with every objective, and each of both with every kind of batch; all of them together are slow.
STEPS = [
    pytest.param(s, o, *kind, marks=[] if (i + 2 * j) % 8 == k else pytest.mark.slow, id=f"{kind[0]}-{o}-{s}")
    for k, kind in enumerate(BATCHES)
    for j, o in enumerate(MINED_OBJECTIVES)
    for i, s in enumerate(SYSTEMS)
]


@pytest.mark.parametrize(("system", "objective", "how", "grad_cache"), STEPS)
def test_a_step_delivers_the_gradient_of_the_loop(system, objective, grad_cache, how):
    """Reference: members encoded and compared one by one, the equation pair by pair."""
    torch.manual_seed(0)
    data, model = data_and_model(system)
    o = tercet.objective(objective)
    sampler = HardNegativeSampler(random_table(data), data.owners, 10, negative_pairs=o.negative_pairs)
    equal = how == "equal text"
    batches = Collator(data, ignore_equal_text=equal, diagonal=how == "diagonal", negative_sampler=sampler)
    index_batches = pair_batches(data.owners, 10, seed=0, epoch=0)
    if how == "several captions":
        index_batches = image_batches(data.owners, 4, 3, seed=0, epoch=0)
    batch = to_float64(batches.make(index_batches[0]))
    assert len(batch.mined.images) <= 2 * int(batch.positives().sum())
    Step(model, train_settings(SMALL | {"grad_cache": grad_cache}))(o, batch, 1)
    gradients = {name: parameter.grad.clone() for name, parameter in model.named_parameters()}
    model.zero_grad()
    # Reference without sharing: every member is read from the data and encoded on its own.
    image, caption = batch.positives().nonzero(as_tuple=True)
    pairs = index_batches[0].images[image], index_batches[0].captions[caption]
    drawn = sampler.draw(*pairs, torch.Generator().manual_seed(index_batches[0].seed ^ 2))

    @cache
    def encoded(side, item):
        items, lengths = getattr(data, side).take(torch.tensor([item]))
        return getattr(model, f"encode_{side}")(items.double() if items.is_floating_point() else items, lengths)

    def one(image, caption):
        return model.similarity(encoded("images", image), encoded("captions", caption))[0, 0]

    S = torch.stack(
        [torch.stack([one(i, c) for c in index_batches[0].captions.tolist()]) for i in index_batches[0].images.tolist()]
    )
    rows = zip(pairs[0].tolist(), pairs[1].tolist(), drawn.images.tolist(), drawn.captions.tolist(), strict=True)
    M = torch.stack(
        [torch.stack([one(i, t[0]), one(n[0], c), one(n[0], t[0]), one(n[1], t[1])]) for i, c, n, t in rows]
    )
    looped(objective, S, batch.positives(), M, ignored=batch.ignored).backward()
    for name, parameter in model.named_parameters():
        assert_close(gradients[name], parameter.grad, atol=1e-9, rtol=1e-7)


def second_round(data, model, objective, steps, **given):
    """Return the weights after `steps` steps in float64, and the scalars."""
    torch.manual_seed(0)
    o = tercet.objective(objective)
    sampler = HardNegativeSampler(random_table(data), data.owners, 10, negative_pairs=o.negative_pairs)
    batches = Collator(data, negative_sampler=sampler)
    index_batches = pair_batches(data.owners, 24, seed=0, epoch=0) + pair_batches(data.owners, 24, seed=0, epoch=1)
    step, optimizer = Step(model, train_settings(SMALL | given)), torch.optim.Adam(model.parameters(), lr=1e-2)
    scalars = []
    for indices in index_batches[:steps]:
        optimizer.zero_grad()
        outcome = step(o, to_float64(batches.make(indices)), indices.seed)
        optimizer.step()
        scalars.append(outcome.scalar)
    return model.state_dict(), scalars


@pytest.mark.parametrize("objective", ["off-tri", "off-quin", "aoq"])
@pytest.mark.parametrize("kind", ["linear", "mlp"])
def test_steps_that_skip_rows_without_a_gradient_train_as_plain_layers_do(objective, kind, monkeypatch):
    """Reference: plain nn.Linear and F.normalize, S and members in one autograd graph."""
    data, _ = data_and_model("heads")
    sizes = {"image_dim": data.images.shape[-1], "caption_dim": data.captions.shape[-1]}
    results, active_shares = [], []

    def recording(gradient):
        active = rows_with_gradient(gradient)
        active_shares.append(1.0 if active is None else len(active) / len(gradient))
        return active

    monkeypatch.setattr(sparse_linear, "rows_with_gradient", recording)
    for plain in (False, True):
        torch.manual_seed(0)
        model = build("heads", embed_dim=24, kind=kind, **sizes).double()
        if plain:
            monkeypatch.setattr(sparse_linear, "_use_custom_backward", lambda rows: False)
            monkeypatch.setattr(MinedMembers, "scalar", plain_scalar)
        results.append(second_round(data, model, objective, 12))
    assert min(active_shares) < 1  # otherwise nothing was skipped, and nothing tested
    assert_close(results[0][0], results[1][0], rtol=0, atol=1e-10)
    assert results[0][1] == pytest.approx(results[1][1], abs=1e-10)


def plain_scalar(members, objective, images, captions, positives):
    S = images @ captions.T
    image, caption = positives.nonzero(as_tuple=True)
    (i, i_other), (t, t_other) = members.items.image_indices.T, members.items.caption_indices.T
    mined_S = members.images @ members.captions.T
    columns = (images @ members.captions.T)[image, t], (members.images @ captions.T)[i, caption]
    M = torch.stack([*columns, mined_S[i, t], mined_S[i_other, t_other]], dim=1)
    return objective.on_similarity(S, positives, mined=M)


def test_candidates_are_appended_once_and_ids_decide():
    data, _ = data_and_model("heads")
    sampler = HardNegativeSampler(random_table(data), data.owners, 10)
    plain, more = Collator(data), Collator(data, negative_sampler=sampler, mined_as_candidates=True)
    indices = pair_batches(data.owners, 24, seed=0, epoch=0)[0]
    small, large = plain.make(indices), more.make(indices)
    assert large.mined is None
    assert torch.equal(large.image_ids[:24], small.image_ids)
    assert torch.equal(large.images[:24], small.images)
    added = large.image_ids[24:]
    assert 0 < len(added) == len(added.unique())
    assert not torch.isin(added, small.image_ids).any()
    image, caption = small.positives().nonzero(as_tuple=True)
    drawn = sampler.draw(
        indices.images[image], indices.captions[caption], torch.Generator().manual_seed(indices.seed ^ 2)
    )
    assert set(added.tolist()) == set(drawn.images[:, 0].tolist()) - set(indices.images.tolist())
    assert len(large.caption_ids) - 24 == len(set(drawn.captions[:, 0].tolist()) - set(indices.captions.tolist()))
    assert_close(
        large.captions[24:],
        data.captions.take(torch.tensor(sorted(set(drawn.captions[:, 0].tolist()) - set(indices.captions.tolist()))))[
            0
        ],
    )


@pytest.mark.parametrize("count", [2, 3])
@pytest.mark.parametrize("as_candidates", [False, True])
def test_shards_of_several_processes_make_up_the_batch(count, as_candidates):
    data, _ = data_and_model("heads")
    sampler = HardNegativeSampler(random_table(data), data.owners, 10)
    batch = Collator(data, negative_sampler=sampler, mined_as_candidates=as_candidates).make(
        pair_batches(data.owners, 24, seed=0, epoch=0)[0]
    )
    shards = [runtime.shard_batch(batch, rank, count) for rank in range(count)]
    assert torch.equal(torch.cat([shard.image_ids for shard in shards]), batch.image_ids)
    assert sorted(torch.cat([shard.caption_ids for shard in shards]).tolist()) == sorted(batch.caption_ids.tolist())
    if not as_candidates:
        for side in ("images", "captions"):
            indices = f"{side[:-1]}_indices"
            members = torch.cat([getattr(s.mined, side)[getattr(s.mined, indices)] for s in shards])
            assert torch.equal(members, getattr(batch.mined, side)[getattr(batch.mined, indices)])


@pytest.fixture(scope="module")
def first_round(tmp_path_factory):
    folder = tmp_path_factory.mktemp("first")
    run = tercet.train(**SMALL, runs=folder / "runs").folder
    mine_table(MineSettings(run, SMALL["data"], folder / "table", top_captions=40, top_images=8))
    return run, folder / "table"


def test_mine_finds_the_hardest_of_the_run_itself(first_round):
    run, folder = first_round
    model = tercet.load(run)
    data = paired("scenes", scenes("train", 90).as_split("global"))
    images, captions = data.images.take(torch.arange(90))[0], data.captions.take(torch.arange(450))[0]
    with torch.no_grad():
        S = model.encode_images(images) @ model.encode_captions(captions).T
    S[data.owners, torch.arange(450)] = -torch.inf
    table = open_mined(folder, data)
    assert_close(torch.from_numpy(table.caption_similarity), S.topk(40, dim=1).values)
    assert_close(torch.from_numpy(table.image_similarity), S.T.topk(8, dim=1).values)
    assert_close(S.gather(1, torch.from_numpy(table.captions).long()), torch.from_numpy(table.caption_similarity))


SECOND = {"objective": "aoq", "mined_top": 30}


@pytest.mark.parametrize("objective", ["off-tri", "off-quin", "aoq"])
@pytest.mark.parametrize("from_scratch", [True, False])
def test_a_second_round_trains(tmp_path, first_round, objective, from_scratch):
    run, table = first_round
    start = {} if from_scratch else {"init_from": str(run)}
    trained = tercet.train(**SMALL, mined=str(table), objective=objective, runs=tmp_path, **start)
    lines = [json.loads(line) for line in (trained.folder / "metrics.jsonl").read_text().splitlines()]
    counts = next(line["cocos"] for line in lines if "cocos" in line)
    assert len(counts["mined_active"]) == 4
    assert counts["mined_active"][0] > 0
    assert json.loads((trained.folder / "settings.json").read_text())["mined_checksum"]


@pytest.mark.parametrize(
    "more",
    [
        {"mine_every": 1},
        *(
            pytest.param(more, marks=pytest.mark.slow)
            for more in ({}, {"mined_draw": "similarity"}, {"captions_per_image": 2, "batch_size": 10})
        ),
    ],
)
def test_an_interrupted_second_round_ends_with_the_same_weights(tmp_path, first_round, more):
    given = SECOND | {"mined": str(first_round[1])} | more
    uninterrupted = tercet.train(**SMALL | given, runs=tmp_path / "uninterrupted", checkpoint_every=2)
    interrupted_run(tmp_path / "interrupted", 11, **given)
    resumed = tercet.train(**SMALL | given, runs=tmp_path / "interrupted", checkpoint_every=2)
    assert_same_run(uninterrupted.folder, resumed.folder)


def test_mining_again_changes_what_is_sampled(tmp_path, first_round):
    given = SMALL | SECOND | {"mined": str(first_round[1])}
    once = tercet.train(**given, runs=tmp_path)
    again = tercet.train(**given, mine_every=1, runs=tmp_path)
    assert once.folder != again.folder
    assert (once.folder / "weights.safetensors").read_bytes() != (again.folder / "weights.safetensors").read_bytes()
    assert "mining the training split again before epoch 2" in (again.folder / "log.txt").read_text()
    assert not (again.folder / "state").exists()


def test_any_objective_may_use_mined_candidates(tmp_path, first_round):
    given = SMALL | {"objective": "nt-xent", "runs": tmp_path}
    plain = tercet.train(**given)
    more = tercet.train(**given, mined=str(first_round[1]), mined_as_candidates=True)
    assert plain.folder != more.folder
    assert (plain.folder / "weights.safetensors").read_bytes() != (more.folder / "weights.safetensors").read_bytes()


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"objective": "aoq"}, "aoq needs --mined"),
        ({"objective": "triplet-sh", "mined": "TABLE"}, "triplet-sh does not use --mined"),
        ({"objective": "aoq", "mined": "TABLE", "mined_as_candidates": True}, "aoq uses mined negatives itself"),
        ({"round": 2}, "--round needs --mined"),
        ({"mine_every": 2}, "--mine-every needs --mined"),
        ({"mined_as_candidates": True}, "--mined-as-candidates needs --mined"),
        ({"objective": "aoq", "mined": "nowhere"}, "nowhere: no mined table"),
        ({"objective": "aoq", "mined": "TABLE", "data": "scenes:91"}, "mined from another dataset"),
        ({"objective": "aoq", "mined": "TABLE", "mined_top": 0}, "--mined-top must be"),
        ({"mined_top": 5}, "--mined-top needs --mined"),
        ({"mined_draw": "normal"}, "--mined-draw needs --mined"),
        (
            {"objective": "nt-xent", "mined": "TABLE", "mined_as_candidates": True, "positives": "diagonal"},
            "--mined-as-candidates needs --positives ids",
        ),
        (
            {
                "objective": "nt-xent",
                "mined": "TABLE",
                "mined_as_candidates": True,
                "model": "bfan",
                "features": "regions",
            },
            "is for dual encoders",
        ),
    ],
)
def test_invalid_combinations_are_refused(tmp_path, first_round, given, message):
    given = {name: str(first_round[1]) if value == "TABLE" else value for name, value in given.items()}
    with pytest.raises(ValueError, match=message):
        tercet.train(**SMALL | given, runs=tmp_path)
    assert not [folder for folder in tmp_path.glob("*") if folder.is_dir() and not folder.name.startswith(".")]


def test_the_second_round_of_a_recipe():
    wanted = {"round": 2, "mined": "somewhere"}
    second = train_settings({"model": "vsrn-f30k", **wanted})
    assert (second.objective, second.epochs, second.learning_rate, second.decay_epochs) == ("aoq", 20, 2e-4, (10,))
    second = train_settings({"model": "bfan-coco", **wanted})
    assert (second.epochs, second.learning_rate, second.decay_epochs) == (15, 5e-4, (10,))
    assert train_settings({"model": "bfan-f30k", **wanted}).learning_rate == 2e-4
    assert train_settings({"model": "scan-t2i-f30k", **wanted}).epochs == 15
    assert train_settings({"model": "heads", **wanted}).objective == "aoq"
    assert train_settings({"model": "vsrn-f30k", **wanted, "objective": "off-quin"}).objective == "off-quin"


def test_train_mine_and_train_again_by_the_commands(tmp_path):
    def tercet_(*arguments):
        done = command(*arguments, cwd=tmp_path)
        assert done.returncode == 0, done.stderr
        return done.stdout

    small = ("scenes:90", "--epochs", "1", "--batch-size", "50", "--model-settings", "embed_dim=16")
    tercet_("train", *small)
    run = only_run(tmp_path / "runs")
    output = tercet_("mine", str(run), "--data", "scenes:90")
    assert (
        f"mined/{run.name} written: 90 images with up to 445 captions each, 450 captions with up to 89 images each"
        in output
    )
    assert "already exists" in tercet_("mine", str(run), "--data", "scenes:90")
    output = tercet_("train", *small, "--round", "2", "--mined", f"mined/{run.name}", "--init-from", str(run))
    assert "_aoq_" in output


@pytest.mark.parametrize(
    "case",
    [
        pytest.param(["--objective", "aoq", "--model-settings", "embed_dim=16"], marks=pytest.mark.slow),
        pytest.param(
            [
                *("--objective", "aoq", "--model", "bfan", "--features", "regions"),
                *("--model-settings", "embed_dim=8", "word_dim=8"),
            ],
            marks=pytest.mark.slow,
        ),
        pytest.param(
            ["--objective", "nt-xent", "--mined-as-candidates", "--model-settings", "embed_dim=16"],
            marks=pytest.mark.slow,
        ),
    ],
)
def test_several_processes_make_the_steps_of_one(tmp_path, case):
    from safetensors.torch import load_file

    run = tercet.train(**SMALL | {"data": "scenes:120"}, runs=tmp_path / "first").folder
    mine_table(MineSettings(run, "scenes:120", tmp_path / "table", top_captions=40, top_images=8))
    folders = [torchrun(tmp_path / str(n), n, [*case, "--mined", str(tmp_path / "table")]) for n in (1, 2, 3)]
    weights = [load_file(run / "weights.safetensors") for run in folders]
    for other in weights[1:]:
        assert max((weights[0][name] - other[name]).abs().max().item() for name in other) < 1e-10


@pytest.mark.parametrize(
    "given",
    [
        {"model": "bfan", "features": "regions", "model_settings": {"embed_dim": 8, "word_dim": 8}},
        {"model": "vsepp", "model_settings": {"embed_dim": 8, "word_dim": 8, "measure": "order"}},
    ],
)
def test_models_without_dot_products_mine_all_pairs_too(tmp_path, given):
    """Exhaustive mining, by the command and during training, equals the top k of the model's full similarity."""
    given = SMALL | {"data": "scenes:20", "epochs": 2, "batch_size": 40, "positives": "ids"} | given
    run = tercet.train(**given, runs=tmp_path / "runs").folder
    features = given.get("features")
    table = mine_table(
        MineSettings(run, "scenes:20", tmp_path / "table", features=features, top_captions=9, top_images=4)
    )
    model = tercet.load(run)
    split = scenes("train", 20).as_split(features or "global")
    data = paired("scenes", split, captions=tokenize_captions(split.texts, model.preprocessor.vocabulary))
    with torch.no_grad():
        S = model.similarity(
            model.encode_images(*data.images.take(torch.arange(20))),
            model.encode_captions(*data.captions.take(torch.arange(100))),
        )
    S[data.owners, torch.arange(100)] = -torch.inf
    assert_close(torch.from_numpy(np.array(table.caption_similarity)), S.topk(9, dim=1).values, atol=1e-5, rtol=1e-5)
    assert_close(torch.from_numpy(np.array(table.image_similarity)), S.T.topk(4, dim=1).values, atol=1e-5, rtol=1e-5)
    second = given | {"objective": "aoq", "mined": str(tmp_path / "table"), "mine_every": 1}
    assert tercet.train(**second, runs=tmp_path / "runs").metrics


def test_mining_again_in_double_precision(tmp_path, first_round):
    given = SMALL | SECOND | {"mined": str(first_round[1]), "mine_every": 1, "precision": "float64"}
    assert tercet.train(**given, runs=tmp_path).metrics


def test_the_warmup_objective_gets_all_its_members():
    """Even if the main objective uses fewer."""
    data, _ = data_and_model("heads")
    table = random_table(data)
    objectives = tercet.objective("aoq"), tercet.objective("off-tri")
    settings = train_settings(SMALL | {"objective": "off-tri", "warmup_objective": "aoq", "mined": "t"})
    assert hard_negative_sampler(table, data, settings, objectives).negative_pairs == 2
    assert hard_negative_sampler(table, data, settings, objectives[1:]).negative_pairs == 1


def test_mining_again_keeps_the_filters_and_no_more_tables_than_needed(tmp_path, first_round):
    run, _ = first_round
    table = tmp_path / "filtered"
    mine_table(
        MineSettings(run, SMALL["data"], table, top_captions=40, top_images=8, filter_known=True, filter_skip_top=1)
    )
    recorded = []
    from tercet.training import mine_run as module

    def recording_remine(model, data, folder, like, weights, before):
        table = remine(model, data, folder, like, weights, before)
        manifest = json.loads((folder / "mined.json").read_text())
        recorded.append((manifest["config"]["filters"], sorted(f.name for f in folder.parent.glob("mined_*"))))
        return table

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(module, "remine", recording_remine)
        given = SMALL | SECOND | {"mined": str(table), "mine_every": 1, "epochs": 5, "epoch_steps": 2}
        tercet.train(**given, runs=tmp_path / "runs")
    assert [filters["known"] for filters, _ in recorded] == [True] * 4
    assert [filters["skip"] for filters, _ in recorded] == [1] * 4
    assert recorded[-1][1] == ["mined_2", "mined_3", "mined_4"]  # before the oldest of them is removed


def test_a_second_round_with_a_config_file(tmp_path):
    config = tmp_path / "some.json"
    config.write_text(json.dumps({"mined": "somewhere"}))
    defaults = defaults_for(["--model", "bfan-f30k", "--config", str(config), "--round", "2"])
    assert (defaults.objective, defaults.decay_epochs, defaults.mined) == ("aoq", (10,), "somewhere")
    with pytest.raises(ValueError, match="--round needs --mined"):
        defaults_for(["--model", "bfan-f30k", "--round", "2"])
    assert defaults_for(["--model", "bfan-f30k", "--round", "2", "--help"]).epochs == 15
