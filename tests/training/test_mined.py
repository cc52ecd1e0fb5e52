"""A second round with mined negatives: what a step sees, exact resume, refreshed tables, several processes."""

import json
import subprocess
import sys
from functools import cache

import numpy as np
import pytest
import torch
from torch.testing import assert_close

import tercet
from tercet.data import paired
from tercet.data.batches import Batches
from tercet.data.meetings import k_caption_meetings, paired_meetings
from tercet.data.members import MemberDraws
from tercet.data.mined import MinedTable, open_mined
from tercet.data.scenes import scenes
from tercet.data.text.tokens import tokens_of
from tercet.data.text.vocabulary import build_vocabulary
from tercet.models import build, projection
from tercet.models.projection import rows_with_gradient
from tercet.training import distributed
from tercet.training.config import defaults_for, train_settings
from tercet.training.mine_settings import MineSettings
from tercet.training.mined import Members, member_draws
from tercet.training.mining import mine_now, mine_table
from tercet.training.step import Step
from tests.objectives.test_offline import looped
from tests.training.small import SMALL
from tests.training.test_distributed import train as torchrun
from tests.training.test_run import assert_same_run, only_run, stopped


def random_table(data, seed=0):
    """Any lists of others' items will do for a step."""
    generator = np.random.default_rng(seed)
    images, captions, owners = len(data.images), len(data.owners), data.owners.numpy()
    of_images = [generator.permutation(np.flatnonzero(owners != i))[:20] for i in range(images)]
    of_captions = [generator.permutation([i for i in range(images) if i != owners[c]])[:8] for c in range(captions)]
    return MinedTable(np.array(of_images, dtype=np.int32), np.array(of_captions, dtype=np.int32), "a table", "0")


def world(system):
    split = scenes("train", 30).as_split("regions" if system in ("bfan", "scan") else "global")
    if system == "heads":
        data = paired("scenes", split)
        model = build("heads", image_dim=data.images.shape[-1], caption_dim=data.captions.shape[-1], joint_dim=6)
    else:
        words = build_vocabulary(split.texts, 1)
        data = paired("scenes", split, captions=tokens_of(split.texts, words))
        more = {"measure": "order"} if system == "order" else {}
        name = "vsepp" if system == "order" else system
        model = build(name, words=len(words), image_dim=data.images.shape[-1], joint_dim=6, word_dim=5, **more)
    return data, model.double()


def wide(batch):
    from dataclasses import replace

    def double(items):
        return replace(
            items, **{n: v.double() for n, v in vars(items).items() if torch.is_tensor(v) and v.is_floating_point()}
        )

    return replace(double(batch), mined=None if batch.mined is None else double(batch.mined))


@pytest.mark.parametrize("system", ["heads", "bfan", "scan", "order"])
@pytest.mark.parametrize("objective", ["off-tri", "off-quin", "aoq"])
@pytest.mark.parametrize(
    ("how", "grad_cache"), [("pairs", None), ("diagonal", 7), ("several captions", 7), ("equal text", None)]
)
def test_a_step_delivers_the_gradient_of_the_loop(system, objective, grad_cache, how):
    """Members encoded one by one, compared one by one, the equation pair by pair."""
    torch.manual_seed(0)
    data, model = world(system)
    o = tercet.objective(objective)
    draws = MemberDraws(random_table(data), data.owners, 10, couples=o.members)
    equal = how == "equal text"
    batches = Batches(data, ignore_equal_text=equal, diagonal=how == "diagonal", members=draws)
    meetings = paired_meetings(data.owners, 10, seed=0, epoch=0)
    if how == "several captions":
        meetings = k_caption_meetings(data.owners, 4, 3, seed=0, epoch=0)
    batch = wide(batches.make(meetings[0]))
    assert len(batch.mined.images) <= 2 * int(batch.positives().sum())
    Step(model, train_settings(SMALL | {"grad_cache": grad_cache}))(o, batch, 1)
    found = {name: parameter.grad.clone() for name, parameter in model.named_parameters()}
    model.zero_grad()
    # Again with nothing shared: every member is read from the data and encoded by itself.
    image, caption = batch.positives().nonzero(as_tuple=True)
    pairs = meetings[0].images[image], meetings[0].captions[caption]
    drawn = draws.draw(*pairs, torch.Generator().manual_seed(meetings[0].seed ^ 2))

    @cache
    def encoded(side, item):
        items, lengths = getattr(data, side).take(torch.tensor([item]))
        return getattr(model, f"encode_{side}")(items.double() if items.is_floating_point() else items, lengths)

    def one(image, caption):
        return model.similarity(encoded("images", image), encoded("captions", caption))[0, 0]

    S = torch.stack(
        [torch.stack([one(i, c) for c in meetings[0].captions.tolist()]) for i in meetings[0].images.tolist()]
    )
    rows = zip(pairs[0].tolist(), pairs[1].tolist(), drawn.images.tolist(), drawn.captions.tolist(), strict=True)
    M = torch.stack(
        [torch.stack([one(i, t[0]), one(n[0], c), one(n[0], t[0]), one(n[1], t[1])]) for i, c, n, t in rows]
    )
    looped(objective, S, batch.positives(), M, ignored=batch.ignored).backward()
    for name, parameter in model.named_parameters():
        assert_close(found[name], parameter.grad, atol=1e-9, rtol=1e-7)


def second_round(data, model, objective, steps, **given):
    """Weights after so many steps, in float64."""
    torch.manual_seed(0)
    o = tercet.objective(objective)
    draws = MemberDraws(random_table(data), data.owners, 10, couples=o.members)
    batches = Batches(data, members=draws)
    meetings = paired_meetings(data.owners, 24, seed=0, epoch=0) + paired_meetings(data.owners, 24, seed=0, epoch=1)
    step, optimizer = Step(model, train_settings(SMALL | given)), torch.optim.Adam(model.parameters(), lr=1e-2)
    shares = []
    for meeting in meetings[:steps]:
        optimizer.zero_grad()
        outcome = step(o, wide(batches.make(meeting)), meeting.seed)
        optimizer.step()
        shares.append(outcome.scalar)
    return model.state_dict(), shares


@pytest.mark.parametrize("objective", ["off-tri", "off-quin", "aoq"])
@pytest.mark.parametrize("kind", ["linear", "mlp"])
def test_steps_that_skip_rows_without_a_gradient_train_as_plain_layers_do(objective, kind, monkeypatch):
    """Plain nn.Linear and F.normalize, S and members in one graph of autograd's own."""
    data, _ = world("heads")
    sizes = {"image_dim": data.images.shape[-1], "caption_dim": data.captions.shape[-1]}
    found, seen = [], []

    def watched(gradient):
        active = rows_with_gradient(gradient)
        seen.append(1.0 if active is None else len(active) / len(gradient))
        return active

    monkeypatch.setattr(projection, "rows_with_gradient", watched)
    for plain in (False, True):
        torch.manual_seed(0)
        model = build("heads", joint_dim=24, kind=kind, **sizes).double()
        if plain:
            monkeypatch.setattr(projection, "_by_hand", lambda rows: False)
            monkeypatch.setattr(Members, "scalar", plain_scalar)
        found.append(second_round(data, model, objective, 12))
    assert min(seen) < 1  # or nothing was skipped, and nothing shown
    assert_close(found[0][0], found[1][0], rtol=0, atol=1e-10)
    assert found[0][1] == pytest.approx(found[1][1], abs=1e-10)


def plain_scalar(members, objective, images, captions, positives):
    S = images @ captions.T
    image, caption = positives.nonzero(as_tuple=True)
    (i, i_other), (t, t_other) = members.items.image_places.T, members.items.caption_places.T
    mined_S = members.images @ members.captions.T
    columns = (images @ members.captions.T)[image, t], (members.images @ captions.T)[i, caption]
    M = torch.stack([*columns, mined_S[i, t], mined_S[i_other, t_other]], dim=1)
    return objective.on_similarity(S, positives, mined=M)


def test_candidates_are_appended_once_and_ids_decide():
    data, _ = world("heads")
    draws = MemberDraws(random_table(data), data.owners, 10)
    plain, more = Batches(data), Batches(data, members=draws, as_candidates=True)
    meeting = paired_meetings(data.owners, 24, seed=0, epoch=0)[0]
    small, large = plain.make(meeting), more.make(meeting)
    assert large.mined is None
    assert torch.equal(large.image_ids[:24], small.image_ids)
    assert torch.equal(large.images[:24], small.images)
    added = large.image_ids[24:]
    assert 0 < len(added) == len(added.unique())
    assert not torch.isin(added, small.image_ids).any()
    image, caption = small.positives().nonzero(as_tuple=True)
    drawn = draws.draw(
        meeting.images[image], meeting.captions[caption], torch.Generator().manual_seed(meeting.seed ^ 2)
    )
    assert set(added.tolist()) == set(drawn.images[:, 0].tolist()) - set(meeting.images.tolist())
    assert len(large.caption_ids) - 24 == len(set(drawn.captions[:, 0].tolist()) - set(meeting.captions.tolist()))
    assert_close(
        large.captions[24:],
        data.captions.take(torch.tensor(sorted(set(drawn.captions[:, 0].tolist()) - set(meeting.captions.tolist()))))[
            0
        ],
    )


@pytest.mark.parametrize("count", [2, 3])
@pytest.mark.parametrize("as_candidates", [False, True])
def test_shares_of_several_processes_make_up_the_batch(count, as_candidates):
    data, _ = world("heads")
    draws = MemberDraws(random_table(data), data.owners, 10)
    batch = Batches(data, members=draws, as_candidates=as_candidates).make(
        paired_meetings(data.owners, 24, seed=0, epoch=0)[0]
    )
    shares = [distributed.share_of(batch, rank, count) for rank in range(count)]
    assert torch.equal(torch.cat([share.image_ids for share in shares]), batch.image_ids)
    assert sorted(torch.cat([share.caption_ids for share in shares]).tolist()) == sorted(batch.caption_ids.tolist())
    if not as_candidates:
        for side in ("images", "captions"):
            places = f"{side[:-1]}_places"
            members = torch.cat([getattr(s.mined, side)[getattr(s.mined, places)] for s in shares])
            assert torch.equal(members, getattr(batch.mined, side)[getattr(batch.mined, places)])


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
    start = {} if from_scratch else {"start_from": str(run)}
    trained = tercet.train(**SMALL, mined=str(table), objective=objective, runs=tmp_path, **start)
    lines = [json.loads(line) for line in (trained.folder / "metrics.jsonl").read_text().splitlines()]
    counts = next(line["cocos"] for line in lines if "cocos" in line)
    assert len(counts["mined_active"]) == 4
    assert counts["mined_active"][0] > 0
    assert json.loads((trained.folder / "settings.json").read_text())["mined_checksum"]


@pytest.mark.parametrize(
    "more", [{}, {"mine_every": 1}, {"mined_draw": "similarity"}, {"captions_each": 2, "batch_size": 10}]
)
def test_a_second_round_that_was_stopped_ends_with_the_same_weights(tmp_path, first_round, more):
    given = SECOND | {"mined": str(first_round[1])} | more
    whole = tercet.train(**SMALL | given, runs=tmp_path / "whole", checkpoint_every=2)
    stopped(tmp_path / "broken", 11, **given)
    resumed = tercet.train(**SMALL | given, runs=tmp_path / "broken", checkpoint_every=2)
    assert_same_run(whole.folder, resumed.folder)


def test_refreshed_tables_change_what_is_drawn(tmp_path, first_round):
    given = SMALL | SECOND | {"mined": str(first_round[1])}
    kept = tercet.train(**given, runs=tmp_path)
    again = tercet.train(**given, mine_every=1, runs=tmp_path)
    assert kept.folder != again.folder
    assert (kept.folder / "weights.safetensors").read_bytes() != (again.folder / "weights.safetensors").read_bytes()
    assert "mines the training set again before epoch 2" in (again.folder / "log.txt").read_text()
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
        ({"objective": "triplet-sh", "mined": "TABLE"}, "triplet-sh does not look at --mined"),
        ({"objective": "aoq", "mined": "TABLE", "mined_as_candidates": True}, "aoq has mined members"),
        ({"round": 2}, "--round needs --mined"),
        ({"mine_every": 2}, "--mine-every needs --mined"),
        ({"mined_as_candidates": True}, "--mined-as-candidates needs --mined"),
        ({"objective": "aoq", "mined": "nowhere"}, "nowhere: no mined table there"),
        ({"objective": "aoq", "mined": "TABLE", "data": "scenes:91"}, "mined from other data"),
        ({"objective": "aoq", "mined": "TABLE", "mined_top": 0}, "--mined-top must be"),
        ({"mined_top": 5}, "--mined-top needs --mined"),
        ({"mined_draw": "normal"}, "--mined-draw needs --mined"),
        (
            {"objective": "nt-xent", "mined": "TABLE", "mined_as_candidates": True, "positives": "diagonal"},
            "goes by ids",
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
def test_what_does_not_go_together_is_told(tmp_path, first_round, given, message):
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


def test_the_commands_go_one_after_the_other(tmp_path):
    def tercet_(*arguments):
        done = subprocess.run(
            [sys.executable, "-m", "tercet.cli", *arguments], cwd=tmp_path, capture_output=True, text=True
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    small = ("--data", "scenes:90", "--epochs", "1", "--batch-size", "50", "--model-settings", "joint_dim=16")
    tercet_("train", *small)
    run = only_run(tmp_path / "runs")
    said = tercet_("mine", str(run), "--data", "scenes:90")
    assert (
        f"mined/{run.name} is ready: up to 445 captions of each of 90 images, up to 89 images of each of 450 captions"
        in said
    )
    assert "was there already" in tercet_("mine", str(run), "--data", "scenes:90")
    said = tercet_("train", *small, "--round", "2", "--mined", f"mined/{run.name}", "--start-from", str(run))
    assert "_aoq_" in said


@pytest.mark.parametrize(
    "case",
    [
        ["--objective", "aoq", "--model-settings", "joint_dim=16"],
        pytest.param(
            [
                *("--objective", "aoq", "--model", "bfan", "--features", "regions"),
                *("--model-settings", "joint_dim=8", "word_dim=8"),
            ],
            marks=pytest.mark.slow,
        ),
        pytest.param(
            ["--objective", "nt-xent", "--mined-as-candidates", "--model-settings", "joint_dim=16"],
            marks=pytest.mark.slow,
        ),
    ],
)
def test_several_processes_make_the_steps_of_one(tmp_path, case):
    from safetensors.torch import load_file

    run = tercet.train(**SMALL | {"data": "scenes:120"}, runs=tmp_path / "first").folder
    mine_table(MineSettings(run, "scenes:120", tmp_path / "table", top_captions=40, top_images=8))
    found = [torchrun(tmp_path / str(n), n, [*case, "--mined", str(tmp_path / "table")]) for n in (1, 2, 3)]
    weights = [load_file(run / "weights.safetensors") for run in found]
    for other in weights[1:]:
        assert max((weights[0][name] - other[name]).abs().max().item() for name in other) < 1e-10


@pytest.mark.parametrize(
    "given",
    [
        {"model": "bfan", "features": "regions", "model_settings": {"joint_dim": 8, "word_dim": 8}},
        {"model": "vsepp", "model_settings": {"joint_dim": 8, "word_dim": 8, "measure": "order"}},
    ],
)
def test_models_that_compare_otherwise_mine_everything_too(tmp_path, given):
    """Exhaustively, by the command and in the middle of training, equal to the model's own similarity of all pairs."""
    given = SMALL | {"data": "scenes:30", "epochs": 2, "batch_size": 20, "positives": "ids"} | given
    run = tercet.train(**given, runs=tmp_path / "runs").folder
    features = given.get("features")
    table = mine_table(
        MineSettings(run, "scenes:30", tmp_path / "table", features=features, top_captions=9, top_images=4)
    )
    model = tercet.load(run)
    split = scenes("train", 30).as_split(features or "global")
    data = paired("scenes", split, captions=tokens_of(split.texts, model.reading.vocabulary))
    with torch.no_grad():
        S = model.similarity(
            model.encode_images(*data.images.take(torch.arange(30))),
            model.encode_captions(*data.captions.take(torch.arange(150))),
        )
    S[data.owners, torch.arange(150)] = -torch.inf
    assert_close(torch.from_numpy(np.array(table.caption_similarity)), S.topk(9, dim=1).values, atol=1e-5, rtol=1e-5)
    assert_close(torch.from_numpy(np.array(table.image_similarity)), S.T.topk(4, dim=1).values, atol=1e-5, rtol=1e-5)
    second = given | {"objective": "aoq", "mined": str(tmp_path / "table"), "mine_every": 1}
    assert tercet.train(**second, runs=tmp_path / "runs").metrics


def test_a_refresh_in_double_precision(tmp_path, first_round):
    given = SMALL | SECOND | {"mined": str(first_round[1]), "mine_every": 1, "precision": "float64"}
    assert tercet.train(**given, runs=tmp_path).metrics


def test_the_first_objective_gets_all_its_members():
    """Though the main one looks at fewer."""
    data, _ = world("heads")
    table = random_table(data)
    objectives = tercet.objective("aoq"), tercet.objective("off-tri")
    settings = train_settings(SMALL | {"objective": "off-tri", "first_objective": "aoq", "mined": "t"})
    assert member_draws(table, data, settings, objectives).couples == 2
    assert member_draws(table, data, settings, objectives[1:]).couples == 1


def test_a_refresh_keeps_the_guards_and_no_more_tables_than_needed(tmp_path, first_round):
    run, _ = first_round
    table = tmp_path / "guarded"
    mine_table(MineSettings(run, SMALL["data"], table, top_captions=40, top_images=8, guard_known=True, guard_skip=1))
    seen = []
    from tercet.training import loop as module

    def kept(model, data, folder, like, weights, before):
        made = mine_now(model, data, folder, like, weights, before)
        manifest = json.loads((folder / "mined.json").read_text())
        seen.append((manifest["wanted"]["guards"], sorted(f.name for f in folder.parent.glob("mined_*"))))
        return made

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(module, "mine_now", kept)
        given = SMALL | SECOND | {"mined": str(table), "mine_every": 1, "epochs": 5, "epoch_steps": 2}
        tercet.train(**given, runs=tmp_path / "runs")
    assert [guards["known"] for guards, _ in seen] == [True] * 4
    assert [guards["skip"] for guards, _ in seen] == [1] * 4
    assert seen[-1][1] == ["mined_2", "mined_3", "mined_4"]  # before the oldest of them goes


def test_a_second_round_asked_for_beside_a_file_of_settings(tmp_path):
    config = tmp_path / "some.json"
    config.write_text(json.dumps({"mined": "somewhere"}))
    found = defaults_for(["--model", "bfan-f30k", "--config", str(config), "--round", "2"])
    assert (found.objective, found.decay_epochs, found.mined) == ("aoq", (10,), "somewhere")
    with pytest.raises(ValueError, match="--round needs --mined"):
        defaults_for(["--model", "bfan-f30k", "--round", "2"])
    assert defaults_for(["--model", "bfan-f30k", "--round", "2", "--help"]).epochs == 15
