"""The authors' checkpoints are read whole or not at all, and nothing in them runs."""

import argparse
import io
import os
import pickle
import types

import numpy as np
import pytest
import torch

from tercet.models.checkpoint import load_untrusted, read_checkpoint
from tercet.models.original import original_model
from tests.models.parity import GOLDENS, golden

VSEPP = GOLDENS / "ckpt_vsepp.pth.tar"


class Python2Pickler(pickle._Pickler):
    """Writes what Python 2 wrote: protocol 2, text as byte strings, the old names of modules."""

    dispatch = dict(pickle._Pickler.dispatch)  # noqa: RUF012 - pickle looks it up on the class

    def save_text(self, text):
        content = text.encode("latin1") if isinstance(text, str) else text
        self.write(pickle.SHORT_BINSTRING + bytes([len(content)]) + content)
        self.memoize(text)

    dispatch[str] = dispatch[bytes] = save_text

    def save_global(self, obj, name=None):
        module = {"numpy._core.multiarray": "numpy.core.multiarray"}.get(getattr(obj, "__module__", None))
        if module is None:
            super().save_global(obj, name)
        else:
            self.write(pickle.GLOBAL + f"{module}\n{obj.__name__}\n".encode())
            self.memoize(obj)

    dispatch[type] = pickle._Pickler.save_type
    dispatch[types.FunctionType] = dispatch[types.BuiltinFunctionType] = save_global


def python2_save(content, file, **how):
    module = types.ModuleType("python2_pickle")
    module.Pickler = Python2Pickler
    module.dump = lambda obj, stream, protocol=2: Python2Pickler(stream, 2).dump(obj)
    torch.save(content, file, pickle_module=module, pickle_protocol=2, _use_new_zipfile_serialization=False, **how)


def trusted(file):
    return torch.load(file, weights_only=False)


def test_a_file_of_python_2_is_read(tmp_path):
    """Byte strings for keys and options, and numpy's scalar for the best result, as the real ones have."""
    content = trusted(VSEPP)
    content["best_rsum"] = np.float64(412.3456789)
    file = tmp_path / "model_best.pth.tar"
    python2_save(content, file)
    raw = file.read_bytes()
    assert b"U\x05model" in raw
    assert b"cnumpy.core.multiarray\nscalar" in raw
    assert load_untrusted(file)["best_rsum"] == 412.3456789
    model, g = original_model("vsepp", file), golden("vsepp_encoders")
    torch.testing.assert_close(model.encode_images(g["in.images"]), g["out.img.abs0.noimgnorm0"])
    assert read_checkpoint(file).options["measure"] == "cosine"


def test_tensors_saved_on_a_gpu_come_to_the_cpu(tmp_path):
    """The old stream names the place of a storage: it is only a name here."""
    content = VSEPP.read_bytes()
    assert content.count(b"cpu") > 0
    (tmp_path / "x.pth").write_bytes(content.replace(b"X\x03\x00\x00\x00cpu", b"X\x06\x00\x00\x00cuda:0"))
    assert read_checkpoint(tmp_path / "x.pth").states[0]["fc.weight"].device.type == "cpu"


class Forged:
    """An object as a pickle makes it: a call, its arguments, perhaps a state."""

    def __init__(self, *made):
        self.made = made

    def __reduce__(self):
        return self.made


HOSTILE = {
    "a command": (Forged(os.system, ("touch hacked",)), r"asks for (posix|nt)\.system"),
    "eval": (Forged(eval, ("open('hacked', 'w')",)), r"asks for ((builtins|__builtin__)\.)?eval"),
    "open": (Forged(io.open, ("hacked", "w")), r"asks for (io|_io|builtins)\.open"),
    "exec": (Forged(exec, ("open('hacked', 'w')",)), r"asks for ((builtins|__builtin__)\.)?exec"),
    "getattr": (Forged(getattr, (types.SimpleNamespace, "mro")), r"asks for|refused"),
    "torch.load": (Forged(torch.load, ("x",)), r"asks for torch\.(serialization\.)?load"),
}


@pytest.mark.parametrize("zipped", [True, False])
@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_checkpoint_writes_nothing_and_is_named(name, zipped, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    hostile, message = HOSTILE[name]
    content = trusted(VSEPP)
    content["opt"] = hostile
    torch.save(content, "bad.pth", _use_new_zipfile_serialization=zipped)
    with pytest.raises(ValueError, match=message) as told:
        original_model("vsepp", "bad.pth")
    assert "bad.pth" in str(told.value)
    assert not (tmp_path / "hacked").exists()


SCALAR = np.float64(0).__reduce__()[0]
FORGED = {
    "a dtype with a state of its own": Forged(
        SCALAR, (Forged(np.dtype, ("f8", False, True), (3, "<", None, None, None, 1 << 30, 1, 63)),)
    ),
    "two gigabytes": Forged(SCALAR, (Forged(np.dtype, ("V2000000000",)),)),
    "objects": Forged(SCALAR, (Forged(np.dtype, ("O",)), b"12345678")),
    "too few bytes": Forged(SCALAR, (Forged(np.dtype, ("f8", False, True)), b"1234")),
}


@pytest.mark.parametrize("name", FORGED)
def test_a_forged_scalar_is_refused(name, tmp_path):
    content = trusted(VSEPP)
    content["best_rsum"] = FORGED[name]
    torch.save(content, tmp_path / "bad.pth")
    with pytest.raises(ValueError, match=r"bad\.pth"):
        original_model("vsepp", tmp_path / "bad.pth")


@pytest.mark.parametrize("number", [np.float64(412.5), np.float32(0.5), np.int64(-7), np.bool_(True)])
def test_numpys_own_scalars_are_read(number, tmp_path):
    torch.save({"x": number}, tmp_path / "x.pth")
    assert load_untrusted(tmp_path / "x.pth")["x"] == number


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda content: content.update(opt=5), "expected the options under 'opt'"),
        (
            lambda content: content["model"][0].update({"fc.weight": torch.zeros(1).expand(24, 10**9)}),
            "repeats a few numbers",
        ),
        (lambda content: content["model"][0]["fc.bias"].fill_(torch.nan), r"NaN or infinity in fc\.bias"),
        (lambda content: content["model"][0].update({"fc.bias": torch.zeros(24, dtype=torch.long)}), "of another kind"),
        (lambda content: content["model"][0].update({"fc.bias": torch.zeros(24, 1)}), "of another shape"),
        (lambda content: content["opt"].__setattr__("measure", "foo"), "measure is cosine, order, not 'foo'"),
    ],
)
def test_strange_contents_are_told(tmp_path, change, message, without_shape_checks):
    content = trusted(VSEPP)
    change(content)
    torch.save(content, tmp_path / "x.pth")
    with pytest.raises(ValueError, match=message):
        original_model("vsepp", tmp_path / "x.pth")


def test_wrapped_twice(tmp_path):
    content = trusted(VSEPP)
    content["model"] = [{f"module.module.{key}": t for key, t in part.items()} for part in content["model"]]
    torch.save(content, tmp_path / "x.pth")
    assert original_model("vsepp", tmp_path / "x.pth").image_head.weight.shape == (24, 40)


def test_the_same_file_would_have_written_one(tmp_path, monkeypatch):
    """The hostile pickles above are hostile: read with trust, they act."""
    monkeypatch.chdir(tmp_path)
    torch.save(HOSTILE["eval"][0], "bad.pth")
    torch.load("bad.pth", weights_only=False).close()
    assert (tmp_path / "hacked").exists()


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda content: content["model"][0].pop("fc.bias"), "missing: image_head.bias"),
        (lambda content: content["model"][1].update(extra=torch.zeros(2)), r"unexpected: extra \(part 1\)"),
        (
            lambda content: content["model"][0].update({"fc.bias": torch.zeros(3)}),
            r"of another shape: fc\.bias \(3,\), expected",
        ),
        (lambda content: content.pop("model"), "expected a checkpoint with a list of state dicts"),
        (lambda content: content["model"].append({"decoder.x": torch.zeros(1)}), r"unexpected: decoder\.x \(part 2\)"),
        (lambda content: content["model"][0].pop("fc.weight"), r"is no checkpoint of vsepp: has no 'fc\.weight'"),
        (lambda content: content["model"][0].update(note="text"), "expected named tensors, got 'note': str"),
    ],
)
def test_what_does_not_fit_is_listed_and_nothing_is_loaded(tmp_path, spoil, message):
    content = trusted(VSEPP)
    spoil(content)
    torch.save(content, tmp_path / "x.pth")
    with pytest.raises(ValueError, match=message):
        original_model("vsepp", tmp_path / "x.pth")


def test_all_that_is_wrong_is_listed_at_once(tmp_path):
    content = trusted(VSEPP)
    content["model"][0]["a"] = content["model"][1]["b"] = torch.zeros(1)
    del content["model"][0]["fc.bias"]
    torch.save(content, tmp_path / "x.pth")
    with pytest.raises(ValueError, match="nothing was loaded") as told:
        original_model("vsepp", tmp_path / "x.pth")
    for part in ("unexpected: a", "unexpected: b", "missing: image_head.bias"):
        assert part in str(told.value)


@pytest.mark.parametrize("content", [b"", b"no checkpoint", pickle.dumps({"model": []}), VSEPP.read_bytes()[:500]])
def test_damaged_files_are_one_line(tmp_path, content):
    (tmp_path / "x.pth").write_bytes(content)
    with pytest.raises(ValueError, match=r"x\.pth"):
        original_model("vsepp", tmp_path / "x.pth")


def test_wrong_names_are_told(tmp_path):
    with pytest.raises(ValueError, match="no originals of 'clip' can be imported; known: vsepp, vsrn, vse-infinity"):
        original_model("clip", VSEPP)
    with pytest.raises(ValueError, match="there is no such file"):
        original_model("vsepp", tmp_path / "gone.pth")
    with pytest.raises(ValueError, match=r"is no checkpoint of vsrn|does not fit the model"):
        original_model("vsrn", VSEPP)


def test_a_resnet_of_torchvision_finds_its_place(tmp_path):
    """VSE++ with a raw-image encoder: names as torchvision has them, behind DataParallel, to Hugging Face's."""
    from transformers import ResNetConfig, ResNetModel

    torch.manual_seed(0)
    theirs = ResNetModel(ResNetConfig(depths=[1, 2, 1, 1], layer_type="bottleneck")).eval()
    image = {f"cnn.module.{torchvision_name(key)}": tensor for key, tensor in theirs.state_dict().items()}
    image |= {"fc.weight": torch.randn(24, 2048), "fc.bias": torch.zeros(24)}
    content = trusted(VSEPP)
    content["model"][0] = image
    torch.save(content, tmp_path / "x.pth")
    model = original_model("vsepp", tmp_path / "x.pth")
    pixels = torch.randn(2, 3, 64, 64)
    with torch.no_grad():
        torch.testing.assert_close(model.backbone.vectors(pixels), theirs(pixels).pooler_output.flatten(1))
        assert model.encode_images(pixels).shape == (2, 24)


def torchvision_name(key):
    """The other way round, written by hand from torchvision's names."""
    parts = key.split(".")
    kind = {"convolution": "conv", "normalization": "bn"}
    if parts[0] == "embedder":
        return f"{kind[parts[2]]}1.{parts[3]}"
    stage, layer = int(parts[2]) + 1, parts[4]
    if parts[5] == "shortcut":
        return f"layer{stage}.{layer}.downsample.{0 if parts[6] == 'convolution' else 1}.{parts[7]}"
    return f"layer{stage}.{layer}.{kind[parts[7]]}{int(parts[6]) + 1}.{parts[8]}"


def test_options_may_be_a_namespace_or_a_dict(tmp_path):
    content = trusted(VSEPP)
    assert isinstance(content["opt"], argparse.Namespace)
    content["opt"] = {"use_abs": True}
    torch.save(content, tmp_path / "x.pth")
    assert original_model("vsepp", tmp_path / "x.pth").settings.absolute
