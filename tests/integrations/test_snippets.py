"""Every snippet of docs/integrations.md runs; those of a host where its package is installed."""

import re
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch

import tercet
from tests.integrations import open_clip_here

PAGE = (Path(__file__).parents[2] / "docs" / "integrations.md").read_text()
SNIPPETS = re.findall(r"```python ?(\w*)\n(.*?)```", PAGE, flags=re.DOTALL)
HOSTS = {"fabric": "lightning", "": "tercet"}
pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("default")]


def test_the_page_has_a_snippet_for_every_adapter():
    named = {host for host, _ in SNIPPETS}
    assert {
        "open_clip",
        "sentence_transformers",
        "transformers",
        "pytorch_metric_learning",
        "lightning",
        "mteb",
    } <= named
    assert [host for host, _ in SNIPPETS].count("skip") == 1  # a whole run of open_clip; its factory is tested


@pytest.mark.parametrize(("host", "source"), [snippet for snippet in SNIPPETS if snippet[0] != "skip"])
def test_a_snippet_runs(host, source, tmp_path, monkeypatch):
    if find_spec(HOSTS.get(host, host)) is None:
        pytest.skip(f"{host} has an environment of its own: make test-integrations")
    if host == "open_clip":
        assert open_clip_here.available()
    monkeypatch.chdir(tmp_path)
    namespace = {"OUT": str(tmp_path / "out"), **inputs_of(host, tmp_path)}
    exec(compile(source, "docs/integrations.md", "exec"), namespace)
    assert namespace.keys() > {"OUT"}


def inputs_of(host, folder):
    """What the snippets leave to the reader: a model on disk, rows, a run."""
    if host == "sentence_transformers":
        from tests.integrations.test_sentence_transformers import text_model

        text_model(folder).float().save(str(folder / "saved"))
        return {"FOLDER": str(folder / "saved")}
    if host == "transformers":
        from tests.integrations.test_hf_trainer import IDS, clip, items

        clip().float().save_pretrained(folder / "clip")
        pixels, texts = items()
        rows = zip(pixels.float(), texts, IDS, strict=True)
        return {
            "FOLDER": str(folder / "clip"),
            "ROWS": [{"pixel_values": p, "input_ids": t, "labels": i} for p, t, i in rows],
        }
    if host == "mteb":
        from tests.search.small_indexes import model

        model("vsepp").save(folder / "model")
        return {"RUN": folder / "model"}
    return {}


def test_the_numbers_that_lightning_logs_are_those_of_cocos(capsys):
    pytest.importorskip("lightning", reason="has an environment of its own: make test-integrations")
    (source,) = [source for host, source in SNIPPETS if host == "lightning"]
    torch.manual_seed(0)
    namespace = {}
    exec(source, namespace)
    logged, latest = namespace["trainer"].callback_metrics, namespace["watcher"].latest
    assert latest["watch/step"] == 3
    assert {name: float(value) for name, value in logged.items()} == pytest.approx(latest, rel=1e-5)
    assert "watch: step 3: monitor" in capsys.readouterr().out
    assert isinstance(namespace["watcher"], tercet.Watcher)
