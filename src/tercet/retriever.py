"""A model with all it takes to read plain texts and pictures: what `tercet.load` gives, and a folder on disk.

The folder holds `config.json`, `weights.safetensors` and a vocabulary or tokenizer. Loading it never runs code.
"""

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Int
from PIL import Image
from torch import Tensor, nn

import tercet
from tercet.contracts import Similarity
from tercet.data.features.encoders import ImageEncoder, TextEncoder, image_encoder, text_encoder
from tercet.data.lines import no_caption, read_json
from tercet.data.meetings import by_length
from tercet.data.pictures import PictureFile, as_rgb, open_picture
from tercet.data.pixels import PixelSettings
from tercet.data.pretrained_pixels import warped_pixels
from tercet.data.text.authors import import_vocabulary
from tercet.data.text.cleaning import LONGEST_IN_TOKENS, cleaned
from tercet.data.text.tokens import Tokens, pretrained_tokenizer, pretrained_tokens_of, tokens_of
from tercet.data.text.vocabulary import Vocabulary
from tercet.data.whole import whole_or_nothing
from tercet.models import SYSTEMS, build
from tercet.models.backbone import text_places
from tercet.models.original import original_model
from tercet.similarity import joined

CONFIG, WEIGHTS, VOCABULARY, TOKENIZER = "config.json", "weights.safetensors", "vocabulary.json", "tokenizer"
TEXTS_AT_ONCE, PICTURES_AT_ONCE = 512, 64


@dataclass(frozen=True)
class Reading:
    """How plain texts and pictures become what the model takes. What is None, it cannot read."""

    vocabulary: Vocabulary | None = None
    tokenizer: str | None = None
    """Name or path of a Hugging Face tokenizer."""
    text_encoder: str | None = None
    """For models of frozen features: the encoder of captions."""
    pixels: PixelSettings | None = None
    image_encoder: str | None = None
    grid: bool = False


class Retriever(nn.Module):
    """Reads, embeds and compares. The model itself is `model`, of the system called `system`."""

    def __init__(self, system: str, model: Any, reading: Reading) -> None:
        super().__init__()
        self.system, self.model, self.reading = system, model, reading
        self._image_encoder: ImageEncoder | None = None
        self._text_encoder: TextEncoder | None = None

    @property
    def dot_product(self) -> bool:
        return bool(self.model.dot_product)

    def encode_images(self, images: Tensor, lengths: Tensor | None = None) -> Tensor:
        return self.model.encode_images(images, lengths)

    def encode_captions(self, captions: Tensor, lengths: Tensor | None = None) -> Tensor:
        return self.model.encode_captions(captions, lengths)

    def similarity(self, encoded_images: Tensor, encoded_captions: Tensor) -> Similarity:
        return self.model.similarity(encoded_images, encoded_captions)

    @torch.inference_mode()
    def embed_texts(self, texts: Sequence[str]) -> Tensor:
        """One row a text, in the order given; in evaluation mode, whatever mode the model is in."""
        with _evaluating(self.model):
            return self._embed_texts(texts)

    def _embed_texts(self, texts: Sequence[str]) -> Tensor:
        _check_texts(texts)
        if self.reading.text_encoder is not None:
            self._text_encoder = self._text_encoder or text_encoder(self.reading.text_encoder)
            return self._in_parts(lambda part: (self._text_encoder.encode(part), None), texts, self.encode_captions)
        tokens = self._tokens(texts)
        batches = by_length(tokens.lengths(), getattr(self.model, "captions_at_once", TEXTS_AT_ONCE))
        encoded = _joined([self.encode_captions(*self._placed(*tokens.take(batch))) for batch in batches])
        return encoded[torch.cat(batches).argsort()]

    @torch.inference_mode()
    def embed_pictures(self, pictures: Sequence[str | Path | Image.Image]) -> Tensor:
        """One row a picture (a file or an open one), in the order given."""
        if isinstance(pictures, (str, Path, Image.Image)):
            raise ValueError("embed_pictures takes a list of pictures, got one: put it in [ ]")
        with _evaluating(self.model):
            return self._in_parts(self._seen, pictures, self.encode_images)

    def see(self, pictures: Sequence[str | Path | Image.Image]) -> tuple[Tensor, Tensor | None]:
        """What `encode_images` takes, on the model's device."""
        return self._placed(*self._seen(pictures))

    def read(self, texts: Sequence[str]) -> tuple[Tensor, Int[Tensor, " text"]]:
        """What `encode_captions` takes, for a model that reads words or tokens."""
        _check_texts(texts)
        tokens = self._tokens(texts)
        ids, lengths = self._placed(*tokens.take(torch.arange(len(texts))))
        assert lengths is not None
        return ids, lengths

    def _in_parts(self, read: Any, items: Sequence[Any], encode: Any) -> Tensor:
        parts = [items[start : start + PICTURES_AT_ONCE] for start in range(0, len(items), PICTURES_AT_ONCE)]
        if not parts:
            raise ValueError("there is nothing to embed")
        return _joined([encode(*self._placed(*read(part))) for part in parts])

    def _seen(self, pictures: Sequence[str | Path | Image.Image]) -> tuple[Tensor, Tensor | None]:
        opened = [as_rgb(p) if isinstance(p, Image.Image) else open_picture(PictureFile(Path(p))) for p in pictures]
        if self.reading.pixels is not None:
            return torch.stack([self.reading.pixels.prepare(picture) for picture in opened]), None
        if self.reading.image_encoder is None:
            raise ValueError(f"this {self.system} model takes precomputed features; how they were made is not known")
        encoder = self._image_encoder or image_encoder(self.reading.image_encoder, grid=self.reading.grid)
        self._image_encoder = encoder
        return encoder.encode(torch.stack([encoder.prepare(picture) for picture in opened])), None

    def _tokens(self, texts: Sequence[str]) -> Tokens:
        if not len(texts):
            raise ValueError("there is nothing to embed")
        if self.reading.vocabulary is None and self.reading.tokenizer is None:
            raise ValueError(f"this {self.system} model came without its vocabulary: give it when importing")
        return read_tokens(self.system, texts, self.reading.vocabulary or self.reading.tokenizer, self.longest)

    @property
    def longest(self) -> int | None:
        """As many tokens as its text model has places for; longer texts are cut."""
        text = _text_model(self.system, self.model.settings)
        return None if text is None else text_places(text)

    def _placed(self, items: Tensor, lengths: Int[Tensor, " item"] | None) -> tuple[Tensor, Tensor | None]:
        """On the model's device."""
        device = next(self.model.parameters()).device
        return items.to(device), None if lengths is None else lengths.to(device)

    def save(self, folder: str | Path) -> None:
        """A folder that appears whole or not at all."""
        with whole_or_nothing(Path(folder)) as unfinished:
            self.write_description(unfinished)
            (unfinished / WEIGHTS).write_bytes(self.weights())

    def write_description(self, folder: Path) -> None:
        """All but the weights."""
        reading = asdict(replace(self.reading, vocabulary=None)) | {"vocabulary": self.reading.vocabulary is not None}
        if self.reading.vocabulary is not None:
            self.reading.vocabulary.save(folder / VOCABULARY)
        if self.reading.tokenizer is not None:
            pretrained_tokenizer(self.reading.tokenizer).save_pretrained(folder / TOKENIZER)
            reading["tokenizer"] = TOKENIZER
        content = {
            "tercet": tercet.__version__,
            "system": self.system,
            "settings": asdict(self.model.settings),
            "reading": reading,
        }
        (folder / CONFIG).write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")

    def weights(self) -> bytes:
        """As safetensors."""
        from safetensors.torch import save

        return save({name: tensor.contiguous() for name, tensor in self.model.state_dict().items()})


def _check_texts(texts: Sequence[str]) -> None:
    if isinstance(texts, str):
        raise ValueError(f"embed_texts takes a list of texts, got one: write embed_texts([{texts!r}])")
    for number, text in enumerate(texts):
        why = no_caption(text)
        if why:
            raise ValueError(f"text {number}: {why}")


def _joined(encoded: list[Tensor]) -> Tensor:
    """Vectors, or sets of them, which are padded to the longest."""
    return joined(encoded) if encoded[0].ndim == 3 else torch.cat(encoded)


@contextmanager
def _evaluating(model: nn.Module) -> Iterator[None]:
    mode = model.training
    model.eval()
    try:
        yield
    finally:
        model.train(mode)


def load(path: str | Path) -> Retriever:
    """A saved model, in evaluation mode. Only numbers and settings are read; nothing in the folder runs."""
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    folder = Path(path)
    if not (folder / CONFIG).is_file():
        raise ValueError(f"{folder}: no saved model there; expected a folder with {CONFIG} and {WEIGHTS}")
    content = read_json(folder / CONFIG)
    try:
        model, made = _built(folder, content)
    except (KeyError, TypeError, ValueError, AttributeError, RuntimeError, OSError) as error:
        raise ValueError(f"{folder / CONFIG}: not the configuration of a saved model: {error}") from error
    try:
        weights = load_file(folder / WEIGHTS)
    except (OSError, SafetensorError) as error:
        raise ValueError(f"{folder / WEIGHTS}: cannot be read: {error}") from error
    _load_weights(model, weights, folder / WEIGHTS)
    return Retriever(content["system"], model, made).eval()


def _built(folder: Path, content: Any) -> tuple[Any, Reading]:
    """The model with random weights, and how it reads."""
    settings, reading = content["settings"], dict(content["reading"])
    if content["system"] not in SYSTEMS:
        raise ValueError(f"no system {content['system']!r}")
    for part in ("backbone", "bert", "vision", "text", "clip"):
        if not isinstance(settings.get(part), (dict, type(None))):
            raise ValueError(f"{part} must be a configuration; a saved model names no other")
    model: Any = build(content["system"], **settings)
    if reading.pop("vocabulary"):
        reading["vocabulary"] = words = Vocabulary.load(folder / VOCABULARY)
        if model.settings.words != len(words):
            raise ValueError(f"{VOCABULARY} has {len(words)} words, the model {model.settings.words}")
    if reading["tokenizer"] is not None:
        reading["tokenizer"] = str(folder / TOKENIZER)
    if reading["pixels"] is not None:
        pixels = reading["pixels"]
        reading["pixels"] = PixelSettings(**pixels | {name: tuple(pixels[name]) for name in ("mean", "std")})
    return model, Reading(**reading)


def _load_weights(model: nn.Module, weights: dict[str, Tensor], place: Path) -> None:
    wanted = model.state_dict()
    wrong = [f"missing: {name}" for name in wanted if name not in weights]
    wrong += [f"unexpected: {name}" for name in weights if name not in wanted]
    wrong += [
        f"of another shape: {name} {tuple(weights[name].shape)}, expected {tuple(tensor.shape)}"
        for name, tensor in wanted.items()
        if name in weights and weights[name].shape != tensor.shape
    ]
    if wrong:
        raise ValueError(f"{place} does not fit the model, nothing was loaded: {'; '.join(wrong)}")
    model.load_state_dict(weights)


def read_tokens(system: str, texts: Sequence[str], reader: Vocabulary | str | None, longest: int | None) -> Tokens:
    """By a vocabulary, or the tokenizer of that name; X-VLM's captions are cleaned first and cut as published."""
    assert reader is not None
    if system == "xvlm":
        longest = min(LONGEST_IN_TOKENS, longest or LONGEST_IN_TOKENS)
        texts = [cleaned(text, longest - 2) for text in texts]  # beside the signs of start and end
    return (
        tokens_of(texts, reader)
        if isinstance(reader, Vocabulary)
        else pretrained_tokens_of(texts, reader, longest=longest)
    )


def _text_model(system: str, settings: Any) -> dict[str, Any] | None:
    """The configuration of a built system's text model; None where it reads words."""
    text = SYSTEMS[system].text
    return None if text is None else getattr(settings, text)


def load_original(
    system: str, path: str | Path, *, vocabulary: Path | None = None, tokenizer: str | None = None, **settings: Any
) -> Retriever:
    """An authors' checkpoint, in evaluation mode; with their vocabulary, or a tokenizer for BERT, it reads texts too.

    Nothing in the file is executed. Settings are read off the file; the ones named here win.
    """
    model: Any = original_model(system, path, **settings)
    words = import_vocabulary(vocabulary) if vocabulary is not None else None
    wanted = getattr(model.settings, "words", None)
    if words is not None and wanted == len(words) + 1 and system == "vse-infinity":
        words = Vocabulary((*words.words, "<mask>"))  # added by their program when it starts
    if words is not None and wanted != len(words):
        raise ValueError(f"{vocabulary} has {len(words)} words, the model in {path} has {wanted}")
    if tokenizer is not None and _text_model(system, model.settings) is None:
        raise ValueError(f"a tokenizer is for BERT; {system} reads words: give its vocabulary")
    pixels = PixelSettings() if getattr(model, "backbone", None) is not None else None
    if system == "xvlm":
        pixels = warped_pixels(model.vision.model.config.image_size)
    return Retriever(system, model, Reading(vocabulary=words, tokenizer=tokenizer, pixels=pixels)).eval()
