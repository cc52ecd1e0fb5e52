"""Hugging Face: a version too old, or a name on the hub without a connection, is one line within seconds."""

import re
import sys
from pathlib import Path

import pytest

from tercet import hub
from tercet.data.encoders.registry import image_encoder


@pytest.fixture
def offline(monkeypatch):
    pytest.importorskip("huggingface_hub")
    for key in ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE"):
        monkeypatch.delenv(key, raising=False)
    monkeypatch.setattr(hub, "is_reachable", lambda: False)


def test_a_name_that_is_not_cached_is_refused_at_once(offline):
    with pytest.raises(ValueError, match=r"'some/model' is neither a folder here nor in the local cache"):
        image_encoder("some/model")


def test_a_cached_model_is_read_from_the_cache(offline, monkeypatch):
    monkeypatch.setattr("huggingface_hub.try_to_load_from_cache", lambda name, file: "/cache/config.json")
    assert hub.hub_options("some/model") == {"local_files_only": True}


def test_a_folder_needs_no_hub(offline, tmp_path):
    assert hub.hub_options(str(tmp_path)) == {}


def test_a_closed_port_is_not_reachable(monkeypatch):
    pytest.importorskip("huggingface_hub")
    for key in ("HTTPS_PROXY", "https_proxy", "ALL_PROXY", "all_proxy"):
        monkeypatch.delenv(key, raising=False)
    monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", "https://127.0.0.1:9")
    hub.is_reachable.cache_clear()
    assert not hub.is_reachable()
    hub.is_reachable.cache_clear()


def test_without_the_package_or_with_an_old_one_the_command_that_installs_it_is_named(monkeypatch):
    monkeypatch.setattr("transformers.__version__", "5.19.0")
    with pytest.raises(ValueError, match=r"encoders need transformers 5\.20\.2 or newer, found 5\.19\.0: pip install"):
        image_encoder("some/model")
    monkeypatch.setattr("transformers.__version__", "5.21.0.dev0")
    assert hub.transformers_for("backbones")
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(ValueError, match=r"encoders need transformers: pip install 'tercet\[hf\]'"):
        image_encoder("some/model")


def test_the_minimum_is_the_declared_one():
    declared = (Path(__file__).parents[1] / "pyproject.toml").read_text()
    assert set(re.findall(r'"transformers>=([\d.]+)', declared)) == {hub.MINIMUM_TRANSFORMERS}
