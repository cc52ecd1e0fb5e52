"""Code in files from somebody else never runs: each file of each kind of folder is replaced by a payload, with forged
checksums, and each reader of the folder is called. A reader refuses in one line, or ignores the file.
"""

import contextlib
import hashlib
import json
import os
import pickle
import shutil
import sys
from functools import cache, partial
from pathlib import Path
from tempfile import mkdtemp

import numpy as np
import pytest
import torch

import tercet as package
from tercet import runs
from tercet.analysis.reports.loaded_run import open_run_folder
from tercet.comparison.results import read_run
from tercet.data.dataset import paired
from tercet.data.encoders.extract import encoders_of
from tercet.data.encoders.registry import image_encoder, text_encoder
from tercet.data.formats import open_data
from tercet.data.hard_negatives import filters_of, open_mined
from tercet.data.text.tokenized import pretrained_tokenizer
from tercet.data.transforms import pretrained_transform
from tercet.models import build
from tercet.models.parts.backbone import hugging_face_model
from tercet.search.embedding_cache import EmbeddingCache
from tercet.search.index import open_index
from tercet.search.searcher import Searcher
from tercet.storage import SEAL, seal, write_manifest
from tercet.training.checkpoint import newest_state, save_state
from tercet.training.mine_run import _read_cached
from tests.checksums import record_again
from tests.commands import Done, nothing_trusted, tercet
from tests.search.small_indexes import model, shared_index
from tests.shared_runs import SMALL, small_run
from tests.tiny_models import save_clip


class Bomb:
    """Makes a folder when it is unpickled."""

    def __init__(self, marker):
        self.marker = str(marker)

    def __reduce__(self):
        return os.makedirs, (self.marker, 0o777, True)


def write_pickle(file, marker):
    file.write_bytes(pickle.dumps(Bomb(marker)))


def write_array(file, marker):
    with file.open("wb") as stream:
        np.save(stream, np.array([Bomb(marker)], dtype=object), allow_pickle=True)


def write_arrays(file, marker):
    """Every array of the file, so that each key that is read has the payload."""
    names = np.load(file).files if file.suffix == ".npz" and file.stat().st_size else ["a"]
    content = dict.fromkeys(names, np.array([Bomb(marker)], dtype=object))
    with file.open("wb") as stream:
        np.savez(stream, **content)


def write_tensors(file, marker):
    torch.save({"model": Bomb(marker), "step": 1}, file)


PAYLOADS = {"pickle": write_pickle, "npz": write_arrays, "npy": write_array, "torch": write_tensors}


@pytest.mark.parametrize("payload", PAYLOADS)
def test_the_payloads_would_run(tmp_path, payload):
    file, marker = tmp_path / "file", tmp_path / "ran"
    file.touch()
    PAYLOADS[payload](file, marker)
    if payload == "torch":
        torch.load(file, weights_only=False)
    elif payload == "npz":
        _ = np.load(file, allow_pickle=True)["a"]
    elif payload == "npy":
        np.load(file, allow_pickle=True)
    else:
        pickle.loads(file.read_bytes())
    assert marker.exists()


@cache
def root():
    return Path(mkdtemp(prefix="tercet_planted_"))


def run_folder(folder):
    shutil.copytree(small_run(), folder)
    return folder / runs.MACHINE


def saved_model(folder):
    model("vsepp").save(folder)
    return folder / "config.json"


def index_folder(folder):
    shutil.copytree(shared_index("scan"), folder)
    return folder / "index.json"


def features_folder(folder):
    tercet("features", "scenes:9", folder, "--image-encoder", "none", "--text-encoder", "bag-of-words", check=True)
    np.save(folder / "train_lengths.npy", np.ones(9, dtype=np.int64))
    return folder / "features.json"


def mined_table(folder):
    tercet("mine", small_run(), "--data", SMALL["data"], "--out", folder, check=True)
    return folder / "mined.json"


MAKERS = {
    "run": run_folder,
    "model": saved_model,
    "index": index_folder,
    "features": features_folder,
    "mined": mined_table,
}


@cache
def original(kind):
    """A folder of this kind and the name of its manifest, made once per process."""
    folder = root() / kind
    manifest = MAKERS[kind](folder)
    return folder, manifest.name


@cache
def data_of_the_run():
    return paired("scenes", open_data(SMALL["data"]).split("train"))


# Kind -> the functions that read such a folder, and the commands that call them.
READERS = {
    "run": [package.load, lambda run: read_run(run, 0), runs.check_run, open_run_folder],
    "model": [lambda folder: package.load(folder).embed_texts(["a red square"])],
    "index": [open_index, lambda folder: Searcher.open(folder).search_text("a red square")],
    "features": [open_data, encoders_of, lambda folder: open_data(folder).split("train").images()],
    "mined": [lambda folder: open_mined(folder, data_of_the_run()), filters_of],
}
COMMANDS = {
    "run": [
        lambda run, out: tercet("doctor", run, "--out", out),
        lambda run, out: tercet("analyse", run, "--cocos", "--out", out),
        lambda run, out: tercet("evaluate", run, "--data", SMALL["data"], "--out", out),
        lambda run, out: tercet("mine", run, "--data", SMALL["data"], "--out", out),
    ],
    "model": [lambda folder, out: tercet("index", folder, "--images", "scenes:9", "--out", out)],
    "index": [lambda folder, out: tercet("search", folder, "a red square")],
    "features": [
        lambda folder, out: tercet("data", "inspect", folder),
        lambda folder, out: tercet("train", folder, "--epochs", 1, "--runs", out),
    ],
    "mined": [lambda folder, out: tercet("mine", small_run(), "--data", SMALL["data"], "--out", folder)],
}
LEVELS = ["functions", pytest.param("commands", marks=pytest.mark.slow)]


def read_all(kind, folder, level, marker):
    """Call every reader; each succeeds, or refuses in one line. Forged checksums are not the reason."""
    out = folder.with_name(f"out_{folder.name}")
    commands = [partial(command, out=out) for command in COMMANDS[kind]] if level == "commands" else []
    for read in [*READERS[kind], *commands]:
        reason = ""
        try:
            done = read(folder)
            reason = done.stderr if isinstance(done, Done) else ""
        except ValueError as error:
            reason = str(error)
        assert not marker.exists()
        assert "was changed" not in reason
        assert "checksum mismatch" not in reason


FILES = {
    "run": ["config.json", "machine.json", "metrics.jsonl", "ranks.npz", "settings.json", "weights.safetensors"],
    "model": ["config.json", "vocabulary.json", "weights.safetensors"],
    "index": [
        *("index.json", "generation_000001/index.faiss", "generation_000001/items.jsonl"),
        *("generation_000001/parts.npy", "generation_000001/parts_crc32.npy", "generation_000001/vectors.npy"),
    ],
    "features": [
        *("dev_caps.txt", "dev_ids.txt", "dev_ims.npy", "dev_txt.npy", "features.json"),
        *("test_caps.txt", "test_ids.txt", "test_ims.npy", "test_txt.npy"),
        *("train_caps.txt", "train_ids.txt", "train_ims.npy", "train_lengths.npy", "train_txt.npy"),
    ],
    "mined": ["i2t.npy", "i2t_similarity.npy", "mined.json", "t2i.npy", "t2i_similarity.npy"],
}
HARMLESS = {"log.txt", ".lock", "unreadable.txt"}  # text that no command reads


@pytest.mark.parametrize("kind", FILES)
def test_every_file_is_on_the_list(kind):
    folder, _ = original(kind)
    present = {file.relative_to(folder).as_posix() for file in folder.rglob("*") if file.is_file()}
    assert {name for name in present if Path(name).name not in HARMLESS} == set(FILES[kind])


def forge_checksums(manifest, folder):
    """Checksums of the planted files, where the manifest is still one."""
    with contextlib.suppress(ValueError, KeyError):
        record_again(manifest, next(folder.glob("generation_*"), folder))


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize(("kind", "name"), [(kind, name) for kind, names in FILES.items() for name in names])
def test_no_payload_runs(tmp_path, kind, name, level):
    source, manifest = original(kind)
    text = name.endswith((".json", ".jsonl", ".txt"))
    for payload in ["pickle"] if text else PAYLOADS:
        folder, marker = tmp_path / payload, tmp_path / "ran"
        shutil.copytree(source, folder)
        PAYLOADS[payload](folder / name, marker)
        forge_checksums(folder / manifest, folder)
        read_all(kind, folder, level, marker)


def test_no_payload_runs_in_unfinished_work(tmp_path):
    """Checkpoints, batches of an index and cached embeddings."""
    marker = tmp_path / "ran"
    save_state(tmp_path / "state", 1, {"step": 1})
    (checkpoint,) = (tmp_path / "state").glob("*.pt")
    write_tensors(checkpoint, marker)
    manifest = json.loads(checkpoint.with_suffix(".json").read_text())
    manifest["sha256"] = hashlib.sha256(checkpoint.read_bytes()).hexdigest()
    checkpoint.with_suffix(".json").write_text(json.dumps(manifest))
    skipped = []
    assert newest_state(tmp_path / "state", skipped.append, lambda state: None) is None
    assert len(skipped) == 1
    (tmp_path / "unfinished").mkdir()
    bomb = np.array([Bomb(marker)], dtype=object)
    np.savez(tmp_path / "unfinished" / "batch_000000.npz", weights=np.array("w"), checksums=bomb, vectors=bomb)
    np.savez(tmp_path / "unfinished" / "batch_000001.npz", weights=bomb, checksums=bomb, vectors=bomb)
    assert "anything" not in EmbeddingCache(tmp_path / "unfinished", "w")
    write_array(tmp_path / "cached.npy", marker)
    seal(tmp_path / "cached.npy")
    assert _read_cached(tmp_path / "cached.npy", 1) is None
    assert not marker.exists()


@pytest.mark.parametrize("name", ["checkpoint.pth", "checkpoint.pth.tar", "vocab.pkl", "vocab.json"])
def test_no_payload_runs_when_a_checkpoint_is_imported(tmp_path, name):
    goldens = Path(__file__).parent / "goldens"
    for payload in PAYLOADS:
        file, marker = tmp_path / name, tmp_path / "ran"
        file.touch()
        PAYLOADS[payload](file, marker)
        checkpoint = goldens / "ckpt_vsepp.pth.tar" if "vocab" in name else file
        more = ("--vocabulary", file) if "vocab" in name else ()
        done = tercet("import", "vsepp", checkpoint, tmp_path / "out", *more)
        assert done.returncode == 2
        assert not marker.exists(), payload


CODE = """import os
os.makedirs({marker!r}, exist_ok=True)
class Evil: pass
def f(S, positives): return S
"""


def test_the_code_would_run(tmp_path, monkeypatch):
    (tmp_path / "evil.py").write_text(CODE.format(marker=str(tmp_path / "ran")))
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "evil", raising=False)
    __import__("evil")
    assert (tmp_path / "ran").exists()


def change(file, **changes):
    content = json.loads(file.read_text())
    for key, value in changes.items():
        *path, last = key.split("__")
        part = content
        for name in path:
            part = part[name]
        part[last] = value
    if content.pop(SEAL, None) is None:
        file.write_text(json.dumps(content))
    else:
        write_manifest(file, content)


# kind, file, setting that names code
NAMED = [
    ("run", "settings.json", "objective"),
    ("run", "settings.json", "warmup_objective"),
    ("run", "settings.json", "model"),
    ("run", "config.json", "system"),
    ("run", "config.json", "preprocessor__text_encoder"),
    ("run", "config.json", "preprocessor__image_encoder"),
    ("model", "config.json", "system"),
    ("model", "config.json", "preprocessor__tokenizer"),
    ("model", "config.json", "settings__backbone"),
    ("index", "index.json", "store"),
    ("index", "index.json", "model__path"),
    ("features", "features.json", "image_encoder"),
    ("features", "features.json", "text_encoder"),
    ("features", "features.json", "source"),
]


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize(("kind", "name", "setting"), NAMED)
@pytest.mark.parametrize(
    "form",
    [
        "{folder}/evil.py:f",
        *(pytest.param(form, marks=pytest.mark.slow) for form in ("{folder}/evil.py:Evil", "evil:Evil", "{folder}")),
    ],
)
def test_no_named_code_runs(tmp_path, monkeypatch, kind, name, setting, form, level):
    source, manifest = original(kind)
    folder, marker = tmp_path / "folder", tmp_path / "ran"
    shutil.copytree(source, folder)
    (folder / "evil.py").write_text(CODE.format(marker=str(marker)))
    monkeypatch.syspath_prepend(folder)  # importable: only nobody imports it
    given = form.format(folder=folder)
    encoder = {"encoder": given} if setting.endswith("_encoder") and kind == "features" else given
    named = {"path": given, "format": given, "images": given} if setting == "source" else encoder
    change(folder / name, **{setting: named})
    if setting == "objective":
        change(folder / name, objective_settings={})
    forge_checksums(folder / manifest, folder)
    with nothing_trusted():
        read_all(kind, folder, level, marker)


AUTO_MAP = {name: f"evil.Evil{name}" for name in ("AutoConfig", "AutoModel", "AutoImageProcessor", "AutoProcessor")}


def plant_auto_map(folder):
    for name in ("config.json", "preprocessor_config.json", "tokenizer_config.json"):
        change(folder / name, auto_map=AUTO_MAP | {"AutoTokenizer": ["evil.Evil", None]})


def plant_unknown_classes(folder):
    plant_auto_map(folder)
    change(folder / "config.json", model_type="evil", architectures=["Evil"])
    change(folder / "preprocessor_config.json", image_processor_type="Evil", processor_class="Evil")
    change(folder / "tokenizer_config.json", tokenizer_class="Evil")


def plant_pickled_weights(folder):
    (folder / "model.safetensors").unlink()
    write_tensors(folder / "pytorch_model.bin", folder.parent / "ran")


def plant_kernels(folder):
    change(folder / "config.json", attn_implementation="someone/kernel")


def plant_kernels_in_a_tower(folder):
    change(folder / "config.json", attn_implementation={"text_config": "someone/kernel"})


@pytest.mark.parametrize(
    ("plant", "refused"),
    [
        (plant_auto_map, 0),  # the classes of transformers are used
        (plant_unknown_classes, 3),
        (plant_pickled_weights, 3),
        (plant_kernels, 3),
        (plant_kernels_in_a_tower, 3),
    ],
)
def test_no_code_of_a_hugging_face_folder_runs(tmp_path, monkeypatch, plant, refused):
    folder, marker = tmp_path / "clip", tmp_path / "ran"
    save_clip(folder, ["a dog"])
    (folder / "evil.py").write_text(CODE.format(marker=str(marker)))
    monkeypatch.syspath_prepend(folder)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setattr("builtins.input", lambda *_: "y")  # transformers may ask
    plant(folder)
    readers = (hugging_face_model, image_encoder, text_encoder, pretrained_tokenizer, pretrained_transform)
    messages = []
    for read in readers:
        try:
            read(str(folder))
        except ValueError as error:
            messages.append(str(error))
        assert not marker.exists()
    assert len(messages) >= refused
    if "kernels" in plant.__name__:
        assert all("code on the hub, which is not run" in message for message in messages)


@pytest.mark.parametrize("model_type", ["resnet", "encoder-decoder", "evil"])
def test_no_code_of_a_configuration_runs(tmp_path, monkeypatch, model_type):
    """In the config.json of a saved model; for a type without a model of its own transformers would ask."""
    (tmp_path / "evil.py").write_text(CODE.format(marker=str(tmp_path / "ran")))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setattr("builtins.input", lambda *_: "y")
    tower = {"model_type": "bert"}
    config = {"model_type": model_type, "auto_map": AUTO_MAP, "_name_or_path": str(tmp_path)}
    config |= {"encoder": tower, "decoder": tower} if model_type == "encoder-decoder" else {}
    with contextlib.suppress(ValueError, KeyError):
        build("vsepp", vocab_size=9, backbone=config)
    assert not (tmp_path / "ran").exists()


def test_kernels_in_a_saved_configuration_are_refused():
    config = {"model_type": "vit", "hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 1}
    for name in ("attn_implementation", "_attn_implementation"):
        with pytest.raises(ValueError, match="code on the hub, which is not run: attn_implementation someone/kernel"):
            build("vsepp", vocab_size=9, backbone=config | {name: "someone/kernel"})
