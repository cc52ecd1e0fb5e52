"""A configuration cannot ask for more memory than the weights beside it need."""

from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

import tercet
from tercet.inference import Preprocessor, Retriever
from tercet.models import build
from tercet.models.registry import at_most
from tercet.storage import write_manifest
from tests.checksums import forge, manifest_of
from tests.search.small_indexes import model

LARGE = 1_000_000  # squared, four terabytes


def heads():
    return Retriever("heads", build("heads", image_dim=6, caption_dim=5, embed_dim=4), Preprocessor())


MODELS = {"heads": heads, "vsepp": lambda: model("vsepp"), "xvlm": lambda: model("xvlm")}


@pytest.mark.parametrize(
    ("system", "path"),
    [
        ("heads", ("embed_dim",)),
        ("heads", ("image_dim",)),
        ("vsepp", ("embed_dim",)),
        ("vsepp", ("word_dim",)),
        ("vsepp", ("backbone", "embedding_size")),
        ("xvlm", ("text", "num_hidden_layers")),  # would not end
        ("xvlm", ("text", "max_position_embeddings")),
    ],
)
def test_sizes_beyond_the_weights_are_refused_at_once(tmp_path, system, path):
    MODELS[system]().save(tmp_path / "model")
    file = tmp_path / "model" / "config.json"
    config = manifest_of(file)
    settings = config["settings"]
    for name in path[:-1]:
        settings = settings[name]
    settings[path[-1]] = LARGE
    if system == "heads":
        config["settings"]["caption_dim"] = LARGE
    write_manifest(file, config)
    with pytest.raises(ValueError, match="larger model than the weights") as error:
        tercet.load(tmp_path / "model")
    assert len(str(error.value).splitlines()) == 1
    assert str(file) in str(error.value)


def test_other_shapes_are_named(tmp_path):
    heads().save(tmp_path / "model")
    file = tmp_path / "model" / "config.json"
    forge(file, settings=manifest_of(file)["settings"] | {"image_dim": 7})
    with pytest.raises(ValueError, match=r"wrong shape: image_head\.linear\.weight \(4, 6\), expected \(4, 7\)"):
        tercet.load(tmp_path / "model")


def test_modules_of_other_threads_are_not_counted(tmp_path):
    """The server loads a model while another one encodes its first query."""
    with ThreadPoolExecutor(1) as pool, at_most(100, tmp_path):
        pool.submit(torch.nn.Linear, 20, 20).result()
        torch.nn.Linear(9, 9)
        with pytest.raises(ValueError, match="larger model"):
            torch.nn.Linear(4, 4)
    torch.nn.Linear(20, 20)  # no longer limited
