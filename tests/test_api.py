"""The Python interface: signatures, exported names, and objectives and data given as objects."""

import ast
import importlib.util
import inspect
import json
import subprocess
import sys
from pathlib import Path

import pytest

import tercet
from tercet.cli.main import main
from tercet.comparison.settings import COMMAND_LINE_ONLY, CompareSettings
from tercet.training.settings import TrainSettings

ROOT = Path(__file__).parents[1]
SMALL = {"epochs": 1, "batch_size": 50, "model_settings": {"embed_dim": 8}, "cocos_every": 0}


def test_signatures_are_those_of_the_settings():
    spec = importlib.util.spec_from_file_location("make_api", ROOT / "tools" / "make_api.py")
    make_api = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(make_api)
    assert make_api.TARGET.read_text() == make_api.make(), "run python tools/make_api.py"
    for function, settings in ((tercet.train, TrainSettings), (tercet.compare, CompareSettings)):
        parameters = inspect.signature(function).parameters
        names = [field.name for field in make_api.fields(settings)]
        assert list(parameters) == [name for name in names if name not in COMMAND_LINE_ONLY]
        defaults = settings()
        for name, parameter in parameters.items():
            value = getattr(defaults, name)
            assert parameter.default == (str(value) if isinstance(value, Path) else value), name
            assert f"\n    {name} (" in inspect.getdoc(function), name


def test_settings_of_the_command_line_only_are_refused():
    with pytest.raises(ValueError, match="compare has no setting 'from_files'"):
        tercet.compare(from_files=["a.npz"])


def test_help_shows_every_setting_with_its_type_default_and_text():
    import pydoc

    text = pydoc.plain(pydoc.render_doc(tercet.train))
    assert "\n    epochs: int = 12,\n" in text
    assert "schedule: Literal['cosine', 'linear', 'steps', 'constant'] = 'cosine'," in text
    assert "epochs (int, default 12): Number of epochs." in text
    assert "grad_clip (float | None, default 2.0): Gradient clipping: maximum norm over all parameters. None:" in text
    assert "--" not in inspect.getdoc(tercet.train) + inspect.getdoc(tercet.compare)


@pytest.mark.slow
def test_editors_complete_settings_and_names():
    jedi = pytest.importorskip("jedi")
    script = jedi.Script("import tercet\ntercet.train('a', warmup_ob")
    assert "warmup_objective=" in {completion.name for completion in script.complete()}
    script = jedi.Script("import tercet\ntercet.objectives.NTX")
    assert {completion.name for completion in script.complete()} == {"NTXent"}
    script = jedi.Script("import tercet\ntercet.open_")
    assert {completion.name for completion in script.complete()} == {"open_data"}


def test_names_are_listed_for_checkers_and_imported_on_first_use():
    tree = ast.parse((ROOT / "src/tercet/__init__.py").read_text())
    block = next(node for node in tree.body if isinstance(node, ast.If))
    seen_by_checkers = {alias.name for statement in block.body for alias in statement.names}
    assert seen_by_checkers == set(tercet.__all__) == set(dir(tercet)) - {"__version__"}
    for name in tercet.__all__:
        assert getattr(tercet, name).__name__.rpartition(".")[2] == name
    code = "import sys, tercet; dir(tercet); sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_classes_of_objectives_are_exported_and_equal_the_names():
    from tercet.objectives import AOQ, OBJECTIVES, Goal, HardestTriplet, NTXent, Sigmoid, SmoothAP, Triplet

    assert NTXent(temperature=0.05) == tercet.objective("nt-xent", temperature=0.05)
    assert Goal("cir", "sig-ms") == tercet.objective("cir/sig-ms")
    assert [build().name for build in (Triplet, HardestTriplet, SmoothAP, Sigmoid)] == [
        "triplet",
        "triplet-sh",
        "smooth-ap",
        "sigmoid",
    ]
    assert AOQ("off-tri").name == "off-tri"
    assert "nt-xent" in OBJECTIVES


def test_data_is_positional_and_a_wrong_name_gets_a_suggestion(tmp_path):
    run = tercet.train("scenes:60", objective="nt-xent", runs=tmp_path, **SMALL)
    assert tercet.train(data="scenes:60", objective="nt-xent", runs=str(tmp_path), **SMALL).folder == run.folder
    with pytest.raises(ValueError, match="did you mean epochs"):
        tercet.train("scenes:60", epoch=3)
    with pytest.raises(ValueError, match="did you mean objectives"):
        tercet.compare("scenes:60", objective="nt-xent")
    with pytest.raises(TypeError, match="too many positional arguments"):
        tercet.train("scenes:60", "heads")


def test_what_is_not_given_is_the_recipe_s(monkeypatch):
    from tercet.training import train as training

    resolved = []

    def only_resolve(settings):
        resolved.append(settings)
        return training.Trained(Path(), {}, "test")

    monkeypatch.setattr(training, "train_run", only_resolve)
    tercet.train(model="vsepp-f30k")
    tercet.train(model="vsepp-f30k", epochs=12)
    tercet.train(model="xvlm-f30k", grad_clip=2.0)
    tercet.train(model="heads", grad_clip=None)
    assert [(settings.epochs, settings.grad_clip) for settings in resolved] == [
        (30, 2.0),
        (12, 2.0),
        (10, 2.0),
        (12, None),
    ]


MARGIN = 0.2


def hinge(S, positives, margin=0.2):
    """All negatives within the margin, rows as anchors."""
    hardest_positive = S.masked_fill(~positives, 9.0).amin(dim=1, keepdim=True)
    push = (~positives & (S + margin > hardest_positive)).to(S.dtype)
    return push - positives * push.sum(dim=1, keepdim=True)


def uses_outside(S, positives):
    return hinge(S, positives, MARGIN)


class Squared(tercet.RowObjective):
    name = "squared"

    def row_gradient(self, rows):
        return rows.similarity * rows.negatives - rows.positives.to(rows.similarity.dtype)


def test_a_function_is_an_objective_of_a_run_without_a_file(tmp_path, monkeypatch):
    run = tercet.train("scenes:60", objective=hinge, runs=tmp_path, **SMALL)
    assert "_hinge_s0_" in run.folder.name
    assert "python:" not in run.folder.name
    settings = json.loads((run.folder / "settings.json").read_text())
    assert settings["objective"].startswith("python:hinge:")
    assert "hardest_positive = S" in settings["objective_code"]
    assert settings["objective_settings"] == {"reduction": "sum", "margin": 0.2}
    again = tercet.train("scenes:60", objective=hinge, objective_settings={"margin": 0.2}, runs=tmp_path, **SMALL)
    assert again.folder == run.folder
    other = tercet.train("scenes:60", objective=tercet.objective(hinge, margin=0.5), runs=tmp_path, **SMALL)
    assert json.loads((other.folder / "settings.json").read_text())["objective_settings"]["margin"] == 0.5
    changed = tercet.train("scenes:60", objective=uses_outside, runs=tmp_path, **SMALL)
    monkeypatch.setitem(globals(), "MARGIN", 0.3)
    assert tercet.train("scenes:60", objective=uses_outside, runs=tmp_path, **SMALL).folder != changed.folder


def test_commands_on_such_a_run_need_the_function(tmp_path, monkeypatch, capsys):
    from tercet import in_memory

    run = tercet.train("scenes:60", objective=Squared, runs=tmp_path / "runs", **SMALL)
    main(["doctor", str(run.folder), "--out", str(tmp_path / "doctor")])  # the same process knows the class
    monkeypatch.setattr(in_memory, "_OBJECTS", {})
    capsys.readouterr()
    for command in (["doctor", str(run.folder)], ["analyse", str(run.folder)]):
        with pytest.raises(SystemExit) as stop:
            main(command)
        assert stop.value.code == 2
        message = capsys.readouterr().err
        assert "was given from Python and is not known in this process: give the function" in message
        assert message.count("\n") == 1
    with pytest.raises(ValueError, match="give the function or class again"):
        tercet.train(config=run.folder / "settings.json", runs=tmp_path / "runs")


def test_an_interrupted_run_of_a_function_resumes(tmp_path, monkeypatch):
    from tercet.training.train import Loop

    given = {"objective": lambda S, positives: hinge(S, positives), "runs": tmp_path, **SMALL, "epochs": 2}
    log_epoch = Loop._log_epoch

    def stop(*_arguments):
        raise KeyboardInterrupt

    monkeypatch.setattr(Loop, "_log_epoch", stop)
    with pytest.raises(KeyboardInterrupt):
        tercet.train("scenes:60", **given)
    monkeypatch.setattr(Loop, "_log_epoch", log_epoch)
    run = tercet.train("scenes:60", **given)
    assert "resuming after step" in (run.folder / "log.txt").read_text()
    assert len(list(tmp_path.iterdir())) == 1


def test_objects_are_compared(tmp_path):
    def hinge(S, positives):  # another function of the same name
        return -positives.to(S.dtype)

    outside = {"hinge": globals()["hinge"]}
    result = tercet.compare(
        "scenes:60",
        objectives=[
            "nt-xent",
            outside["hinge"],
            hinge,
            Squared(reduction="mean"),
            tercet.objectives.NTXent(temperature=1.0),
        ],
        seeds=1,
        epochs=1,
        no_tune=True,
        train={"batch_size": 50},
        runs=tmp_path,
    )
    assert not result.results.failures
    names = result.results.names()
    assert [name.split()[0] for name in names] == ["nt-xent", "hinge", "hinge", "squared", "nt-xent"]
    assert names[3:] == ["squared reduction=mean", "nt-xent temperature=1.0"]
    assert len(set(names)) == 5


def test_where_a_fork_is_not_possible_runs_are_made_in_this_process(tmp_path, monkeypatch):
    from tercet.comparison.executors import local

    spawn = local.multiprocessing.get_context("spawn")
    monkeypatch.setattr(local, "_context", lambda *_arguments: spawn)
    given = {"objectives": [hinge, "nt-xent"], "seeds": 1, "epochs": 1, "train": {"batch_size": 50}}
    given |= {"runs": tmp_path, "no_tune": True}
    assert len(tercet.compare("scenes:60", **given).results.names()) == 2


def test_settings_of_a_function_in_a_file(tmp_path, capsys):
    file = tmp_path / "mine.py"
    file.write_text(
        "def f(S, positives, margin=0.2, kind='a'):\n    return (~positives) * margin - positives.to(S.dtype)\n"
    )
    assert tercet.objective(f"{file}:f:margin=0.3").settings == {"reduction": "sum", "margin": 0.3, "kind": "a"}
    common = ["scenes:60", "--epochs", "1", "--batch-size", "50", "--runs", str(tmp_path / "runs")]
    main(["train", *common, "--objective", f"{file}:f:margin=0.3", "--warmup-objective", f"{file}:f:margin=0.9"])
    (run,) = (tmp_path / "runs").iterdir()
    settings = json.loads((run / "settings.json").read_text())
    assert settings["objective"] == f"{file}:f"
    assert settings["objective_settings"]["margin"] == 0.3
    again = tercet.train(config=run / "settings.json", runs=tmp_path / "runs", resume=True)
    assert again.folder == run
    for spec, message in (
        ("f:margn=1", "f has no setting 'margn' (did you mean margin?)"),
        ("f:margin=wide", "f: margin must be like its default 0.2, got 'wide'"),
    ):
        with pytest.raises(SystemExit):
            main(["train", *common, "--objective", f"{file}:{spec}"])
        assert message in capsys.readouterr().err
    with pytest.raises(ValueError, match=r"differ: margin is 0\.3 and 0\.4"):
        TrainSettings(objective=f"{file}:f:margin=0.3", objective_settings={"margin": 0.4})
    with pytest.raises(ValueError, match="margin is given twice"):
        tercet.objective("triplet:margin=0.3", margin=0.4)


def captures(value):
    def closure(S, positives):
        return -positives.to(S.dtype) * (value is not None)

    return closure


def test_what_a_function_captures_is_part_of_it_or_refused():
    from tercet.objectives.registry import spec_of

    assert spec_of(captures(1.0)) == spec_of(captures(1.0)) != spec_of(captures(2.0))
    with pytest.raises(ValueError, match="closure uses value, a object, whose content cannot be compared"):
        spec_of(captures(object()))
    scope = {}
    exec("def shell(S, positives): return -positives.to(S.dtype)", scope)
    with pytest.raises(ValueError, match="the source of shell is not available"):
        spec_of(scope["shell"])
    one, two = (lambda S, positives: -1.0 * positives), (lambda S, positives: -2.0 * positives)
    with pytest.raises(ValueError, match="the source of <lambda> is not available"):
        spec_of(one)
    assert two is not one
    assert spec_of(lambda S, positives: -3.0 * positives).startswith("python:<lambda>:")
    with pytest.raises(ValueError, match="its parameter 'margin' needs a default"):
        spec_of(lambda S, positives, margin: -positives)
