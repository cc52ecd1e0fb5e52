"""The authors' checkpoints are loaded completely or not at all, and no code in them is executed."""

import argparse
import io
import os
import pickle
import types

import numpy as np
import pytest
import torch

from tercet.models.convert.safe_load import load_untrusted, read_checkpoint
from tercet.models.convert.state_dicts import original_model
from tests.models.parity import GOLDENS, golden

VSEPP = GOLDENS / "ckpt_vsepp.pth.tar"


class Python2Pickler(pickle._Pickler):
    """Writes pickles as Python 2 did: protocol 2, text as byte strings, old module names."""

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
    """Byte strings for keys and options, and a numpy scalar for the best result, as in the real files."""
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
    """The legacy format stores the device of a storage, which is ignored."""
    content = VSEPP.read_bytes()
    assert content.count(b"cpu") > 0
    (tmp_path / "x.pth").write_bytes(content.replace(b"X\x03\x00\x00\x00cpu", b"X\x06\x00\x00\x00cuda:0"))
    assert read_checkpoint(tmp_path / "x.pth").states[0]["fc.weight"].device.type == "cpu"


class Forged:
    """An object with a chosen __reduce__ result: a callable, its arguments, perhaps a state."""

    def __init__(self, *reduced):
        self.reduced = reduced

    def __reduce__(self):
        return self.reduced


HOSTILE = {
    "a command": (Forged(os.system, ("touch hacked",)), r"references (posix|nt)\.system"),
    "eval": (Forged(eval, ("open('hacked', 'w')",)), r"references ((builtins|__builtin__)\.)?eval"),
    "open": (Forged(io.open, ("hacked", "w")), r"references (io|_io|builtins)\.open"),
    "exec": (Forged(exec, ("open('hacked', 'w')",)), r"references ((builtins|__builtin__)\.)?exec"),
    "getattr": (Forged(getattr, (types.SimpleNamespace, "mro")), r"references|refused"),
    "torch.load": (Forged(torch.load, ("x",)), r"references torch\.(serialization\.)?load"),
}


@pytest.mark.parametrize("zipped", [True, False])
@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_checkpoint_is_refused_by_name_and_not_executed(name, zipped, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    hostile, message = HOSTILE[name]
    content = trusted(VSEPP)
    content["opt"] = hostile
    torch.save(content, "bad.pth", _use_new_zipfile_serialization=zipped)
    with pytest.raises(ValueError, match=message) as error:
        original_model("vsepp", "bad.pth")
    assert "bad.pth" in str(error.value)
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
            r"is an expanded tensor \(stride 0\)",
        ),
        (lambda content: content["model"][0]["fc.bias"].fill_(torch.nan), r"NaN or infinity in fc\.bias"),
        (lambda content: content["model"][0].update({"fc.bias": torch.zeros(24, dtype=torch.long)}), "wrong dtype"),
        (lambda content: content["model"][0].update({"fc.bias": torch.zeros(24, 1)}), "wrong shape"),
        (
            lambda content: content["opt"].__setattr__("measure", "foo"),
            "measure must be one of cosine, order, got 'foo'",
        ),
    ],
)
def test_invalid_contents_are_reported(tmp_path, change, message, without_shape_checks):
    content = trusted(VSEPP)
    change(content)
    torch.save(content, tmp_path / "x.pth")
    with pytest.raises(ValueError, match=message):
        original_model("vsepp", tmp_path / "x.pth")


def test_a_model_wrapped_twice_in_data_parallel(tmp_path):
    content = trusted(VSEPP)
    content["model"] = [{f"module.module.{key}": t for key, t in state.items()} for state in content["model"]]
    torch.save(content, tmp_path / "x.pth")
    assert original_model("vsepp", tmp_path / "x.pth").image_head.weight.shape == (24, 40)


def test_the_hostile_pickles_are_executed_by_an_unsafe_load(tmp_path, monkeypatch):
    """Checks that the hostile pickles above are really hostile."""
    monkeypatch.chdir(tmp_path)
    torch.save(HOSTILE["eval"][0], "bad.pth")
    torch.load("bad.pth", weights_only=False).close()
    assert (tmp_path / "hacked").exists()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda content: content["model"][0].pop("fc.bias"), "missing: image_head.bias"),
        (lambda content: content["model"][1].update(extra=torch.zeros(2)), r"unexpected: extra \(state dict 1\)"),
        (
            lambda content: content["model"][0].update({"fc.bias": torch.zeros(3)}),
            r"wrong shape: fc\.bias \(3,\), expected",
        ),
        (lambda content: content.pop("model"), "expected a checkpoint with a list of state dicts"),
        (
            lambda content: content["model"].append({"decoder.x": torch.zeros(1)}),
            r"unexpected: decoder\.x \(state dict 2\)",
        ),
        (lambda content: content["model"][0].pop("fc.weight"), r"not a vsepp checkpoint: missing key 'fc\.weight'"),
        (lambda content: content["model"][0].update(note="text"), "expected named tensors, got 'note': str"),
    ],
)
def test_what_does_not_fit_is_listed_and_nothing_is_loaded(tmp_path, change, message):
    content = trusted(VSEPP)
    change(content)
    torch.save(content, tmp_path / "x.pth")
    with pytest.raises(ValueError, match=message):
        original_model("vsepp", tmp_path / "x.pth")


def test_all_that_is_wrong_is_listed_at_once(tmp_path):
    content = trusted(VSEPP)
    content["model"][0]["a"] = content["model"][1]["b"] = torch.zeros(1)
    del content["model"][0]["fc.bias"]
    torch.save(content, tmp_path / "x.pth")
    with pytest.raises(ValueError, match="nothing was loaded") as error:
        original_model("vsepp", tmp_path / "x.pth")
    for problem in ("unexpected: a", "unexpected: b", "missing: image_head.bias"):
        assert problem in str(error.value)


@pytest.mark.parametrize("content", [b"", b"no checkpoint", pickle.dumps({"model": []}), VSEPP.read_bytes()[:500]])
def test_corrupt_files_are_reported_in_one_line(tmp_path, content):
    (tmp_path / "x.pth").write_bytes(content)
    with pytest.raises(ValueError, match=r"x\.pth"):
        original_model("vsepp", tmp_path / "x.pth")


def test_wrong_names_are_reported(tmp_path):
    with pytest.raises(ValueError, match="no checkpoints of 'clip' can be imported; known: vsepp, vsrn, vse-infinity"):
        original_model("clip", VSEPP)
    with pytest.raises(ValueError, match="there is no such file"):
        original_model("vsepp", tmp_path / "gone.pth")
    with pytest.raises(ValueError, match=r"not a vsrn checkpoint|does not fit the model"):
        original_model("vsrn", VSEPP)


def test_a_torchvision_resnet_is_converted(tmp_path):
    """VSE++ with a ResNet backbone: torchvision's keys, wrapped in DataParallel, to Hugging Face's."""
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
    """The inverse mapping, written by hand from torchvision's names."""
    fields = key.split(".")
    kind = {"convolution": "conv", "normalization": "bn"}
    if fields[0] == "embedder":
        return f"{kind[fields[2]]}1.{fields[3]}"
    stage, layer = int(fields[2]) + 1, fields[4]
    if fields[5] == "shortcut":
        return f"layer{stage}.{layer}.downsample.{0 if fields[6] == 'convolution' else 1}.{fields[7]}"
    return f"layer{stage}.{layer}.{kind[fields[7]]}{int(fields[6]) + 1}.{fields[8]}"


def test_options_may_be_a_namespace_or_a_dict(tmp_path):
    content = trusted(VSEPP)
    assert isinstance(content["opt"], argparse.Namespace)
    content["opt"] = {"use_abs": True}
    torch.save(content, tmp_path / "x.pth")
    assert original_model("vsepp", tmp_path / "x.pth").settings.absolute
