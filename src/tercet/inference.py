"""Saved models: `Retriever`, a model with its text and image preprocessing, and `tercet.load`.

A saved model is a folder with `config.json`, `weights.safetensors` and a vocabulary or tokenizer. Loading it executes
no code, but that of a file which the user trusts.
"""

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Int
from PIL import Image
from torch import Tensor, nn

import tercet
from tercet.data.encoders.registry import ImageEncoder, TextEncoder, image_encoder, text_encoder
from tercet.data.image_io import ImageFile, as_rgb, open_image
from tercet.data.samplers import by_length
from tercet.data.text.tokenized import TokenizedCaptions, pretrained_tokenizer, tokenize_captions, tokenize_pretrained
from tercet.data.text.tokenizer import MAX_TOKENS, normalize_caption
from tercet.data.text.vocabulary import Vocabulary, import_vocabulary
from tercet.data.textio import caption_error, read_json
from tercet.data.transforms import TransformSettings, pretrained_transform, squash_transform
from tercet.hub import is_pretrained
from tercet.interfaces import CaptionBatchSize, RetrievalModel, SystemSpec, TorchModule, TrainableBackbone
from tercet.models import build, system_of
from tercet.models.convert.state_dicts import EXTRA_WORDS, original_model
from tercet.models.parts.backbone import image_size_of, max_positions
from tercet.models.registry import Shapes, build_for_weights, stored_shapes
from tercet.plugins import check_trusted, is_file_name, source_checksum
from tercet.similarity import concat_padded
from tercet.storage import (
    CHECKSUMS,
    FORMAT_VERSION,
    LOCK,
    MACHINE,
    atomic_directory,
    check_checksums,
    checked_manifest,
    checksums_of,
    sha256_of,
    write_manifest,
)
from tercet.types import IMAGE_TEXT, SIDES, Sides, Similarity

CONFIG, WEIGHTS, VOCABULARY, TOKENIZER = "config.json", "weights.safetensors", "vocabulary.json", "tokenizer"
TEXT_BATCH_SIZE, IMAGE_BATCH_SIZE = 512, 64
REMEDY = "make the model again, or copy it again from where it was made"


@dataclass(frozen=True)
class Preprocessor:
    """How texts and images become model inputs. Fields that are None are not supported by the model."""

    vocabulary: Vocabulary | None = None
    tokenizer: str | None = None
    """Name or path of a Hugging Face tokenizer."""
    text_encoder: str | None = None
    """For models on frozen features: name of the caption encoder."""
    pixels: TransformSettings | None = None
    image_encoder: str | None = None
    """For models on frozen features: name of the image encoder; if both sides are texts, of a text encoder."""
    grid: bool = False
    sides: Sides = IMAGE_TEXT


class Retriever(nn.Module):
    """A model that embeds texts and images. `model` is the model itself, `system` the name of its system."""

    model: RetrievalModel

    def __init__(self, system: str, model: RetrievalModel, preprocessor: Preprocessor) -> None:
        super().__init__()
        self.system, self.preprocessor = system, preprocessor
        self.model = model
        self._image_encoder: ImageEncoder | None = None
        self._text_encoder: TextEncoder | None = None
        self._passage_encoder: TextEncoder | None = None

    @property
    def sides(self) -> Sides:
        return self.preprocessor.sides

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
        """Return one row per text, in their order. Runs in evaluation mode and restores the model's mode."""
        with _evaluation_mode(self.model):
            return self._embed_texts(texts)

    def _embed_texts(self, texts: Sequence[str]) -> Tensor:
        _check_texts(texts)
        if self.preprocessor.text_encoder is not None:
            self._text_encoder = self._text_encoder or text_encoder(self.preprocessor.text_encoder)
            return self._in_batches(lambda batch: (self._text_encoder.encode(batch), None), texts, self.encode_captions)
        return self._embed_tokens(texts, self.encode_captions)

    def _embed_tokens(self, texts: Sequence[str], encode: Any) -> Tensor:
        tokens = self._tokens(texts)
        batch_size = self.model.eval_batch_size if isinstance(self.model, CaptionBatchSize) else TEXT_BATCH_SIZE
        batches = by_length(tokens.lengths(), batch_size)
        encoded = _concat([encode(*self._to_device(*tokens.take(batch))) for batch in batches])
        return encoded[torch.cat(batches).argsort()]

    @torch.inference_mode()
    def embed_passages(self, passages: Sequence[str]) -> Tensor:
        """Return one row per passage, in their order, for a model of two texts; `embed_texts` takes the queries."""
        if not self.sides.image_is_text:
            raise ValueError(f"this {self.system} model takes images: write embed_images([path])")
        with _evaluation_mode(self.model):
            _check_texts(passages)
            if self.preprocessor.image_encoder is None:
                return self._embed_tokens(passages, self.encode_images)
            encoder = self._passage_encoder = self._passage_encoder or text_encoder(self.preprocessor.image_encoder)
            return self._in_batches(lambda batch: (encoder.encode(batch), None), passages, self.encode_images)

    @torch.inference_mode()
    def embed_images(self, images: Sequence[str | Path | Image.Image]) -> Tensor:
        """Return one row per image (a path or a PIL image), in their order."""
        if isinstance(images, (str, Path, Image.Image)):
            raise ValueError("embed_images takes a list of images, got a single image: write embed_images([image])")
        if self.sides.image_is_text:
            raise ValueError(
                f"this {self.system} model compares {self.sides.captions} with {self.sides.images}: "
                "write embed_passages([text])"
            )
        with _evaluation_mode(self.model):
            return self._in_batches(self._preprocess, images, self.encode_images)

    @torch.inference_mode()
    def embed_features(self, features: Tensor) -> Tensor:
        """Return one row per image, from what the model's image encoder made of them."""
        with _evaluation_mode(self.model):
            return self._in_batches(lambda batch: (batch, None), features, self.encode_images)

    def preprocess_images(self, images: Sequence[str | Path | Image.Image]) -> tuple[Tensor, Tensor | None]:
        """Return the inputs of `encode_images`, on the model's device."""
        return self._to_device(*self._preprocess(images))

    def tokenize(self, texts: Sequence[str]) -> tuple[Tensor, Int[Tensor, " text"]]:
        """Return token ids and lengths, the inputs of `encode_captions`, for a model with a vocabulary or tokenizer."""
        _check_texts(texts)
        tokens = self._tokens(texts)
        ids, lengths = self._to_device(*tokens.take(torch.arange(len(texts))))
        assert lengths is not None
        return ids, lengths

    def _in_batches(self, preprocess: Any, items: Sequence[Any] | Tensor, encode: Any) -> Tensor:
        batches = [items[start : start + IMAGE_BATCH_SIZE] for start in range(0, len(items), IMAGE_BATCH_SIZE)]
        if not batches:
            raise ValueError("nothing to embed: the list is empty")
        return _concat([encode(*self._to_device(*preprocess(batch))) for batch in batches])

    def _preprocess(self, images: Sequence[str | Path | Image.Image]) -> tuple[Tensor, Tensor | None]:
        opened = [as_rgb(p) if isinstance(p, Image.Image) else open_image(ImageFile(Path(p))) for p in images]
        if self.preprocessor.pixels is not None:
            return torch.stack([self.preprocessor.pixels.prepare(image) for image in opened]), None
        if self.preprocessor.image_encoder is None:
            raise ValueError(f"this {self.system} model takes precomputed features, and their image encoder is unknown")
        encoder = self._image_encoder or image_encoder(self.preprocessor.image_encoder, grid=self.preprocessor.grid)
        self._image_encoder = encoder
        return encoder.encode(torch.stack([encoder.prepare(image) for image in opened])), None

    def _tokens(self, texts: Sequence[str]) -> TokenizedCaptions:
        if not len(texts):
            raise ValueError("nothing to embed: the list is empty")
        if self.preprocessor.vocabulary is None and self.preprocessor.tokenizer is None:
            raise ValueError(f"this {self.system} model has no vocabulary: import it again with --vocabulary")
        return tokenize(
            self.model.spec, texts, self.preprocessor.vocabulary or self.preprocessor.tokenizer, self.max_tokens
        )

    @property
    def max_tokens(self) -> int | None:
        """Number of positions of the text model; longer texts are truncated. None without a limit."""
        text = _text_model(self.model)
        return None if text is None else max_positions(text)

    def _to_device(self, items: Tensor, lengths: Int[Tensor, " item"] | None) -> tuple[Tensor, Tensor | None]:
        """Move to the model's device."""
        device = next(self.model.parameters()).device
        return items.to(device), None if lengths is None else lengths.to(device)

    def save(self, folder: str | Path) -> None:
        """Write the model to a new folder, atomically."""
        with atomic_directory(Path(folder)) as unfinished:
            (unfinished / WEIGHTS).write_bytes(as_safetensors(self.model.state_dict()))
            self.write_description(unfinished, with_checksums=True)

    def write_description(self, folder: Path, *, with_checksums: bool = False) -> None:
        """Write everything but the weights. A run adds the checksums when it is finished, a saved model now."""
        preprocessor = asdict(replace(self.preprocessor, vocabulary=None)) | {
            "vocabulary": self.preprocessor.vocabulary is not None,
            "sides": self.sides.kind,
        }
        if self.preprocessor.vocabulary is not None:
            self.preprocessor.vocabulary.save(folder / VOCABULARY)
        if self.preprocessor.tokenizer is not None:
            pretrained_tokenizer(self.preprocessor.tokenizer).save_pretrained(folder / TOKENIZER)
            preprocessor["tokenizer"] = TOKENIZER
        content = {
            "tercet": tercet.__version__,
            "format_version": FORMAT_VERSION,
            "system": self.system,
            "source": source_checksum(self.system) if is_file_name(self.system) else None,
            "settings": asdict(self.model.settings),
            "preprocessor": preprocessor,
        }
        if with_checksums:
            files = (file.relative_to(folder) for file in folder.rglob("*") if file.is_file())
            content[CHECKSUMS] = checksums_of(folder, [name.as_posix() for name in files if name.name != LOCK])
        write_manifest(folder / CONFIG, content)


def as_safetensors(weights: Mapping[str, Tensor]) -> bytes:
    """Return the weights in safetensors format."""
    from safetensors.torch import save

    return save({name: tensor.contiguous() for name, tensor in weights.items()})


def checksum_of_weights(folder: Path) -> str:
    return sha256_of([folder / WEIGHTS])[:16]


def checksum_of_model(path: str | Path, retriever: Retriever) -> str:
    """What identifies the weights that were loaded from this path: of a model of Tercet, the checksum of their file."""
    if (Path(path) / WEIGHTS).is_file():
        return checksum_of_weights(Path(path))
    digest = hashlib.sha256()
    for name, weight in sorted(retriever.model.state_dict().items()):
        digest.update(name.encode())
        digest.update(weight.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().data)
    return digest.hexdigest()[:16]


def _check_texts(texts: Sequence[str]) -> None:
    if isinstance(texts, str):
        raise ValueError(f"embed_texts takes a list of texts, got a single text: write embed_texts([{texts!r}])")
    for index, text in enumerate(texts):
        error = caption_error(text)
        if error:
            raise ValueError(f"text {index}: {error}")


def _concat(encoded: list[Tensor]) -> Tensor:
    """Concatenate vectors, or sets of vectors padded to the longest."""
    return concat_padded(encoded) if encoded[0].ndim == 3 else torch.cat(encoded)


@contextmanager
def _evaluation_mode(model: TorchModule) -> Iterator[None]:
    was_training = model.training
    model.eval()
    try:
        yield
    finally:
        model.train(was_training)


def load(path: str | Path) -> Retriever:
    """Load a saved model or a run, or a CLIP or SigLIP of Hugging Face as it is, in evaluation mode.

    The latter is a folder or a name on the hub. No code in a folder or from the hub is executed.

    A model whose class is in a user's file (`mine.py:Class`) needs that file to be trusted: `--trust mine.py` on the
    command line, `tercet.plugins.trust(["mine.py"])` in Python.
    """
    from safetensors.torch import load_file

    folder = Path(path)
    if is_pretrained(str(path)):
        return load_pretrained(str(path))
    if not (folder / CONFIG).is_file():
        raise ValueError(
            f"{folder}: not a saved model: {_what_it_is(folder)}expected a folder with {CONFIG} and {WEIGHTS}"
        )
    content = checked_manifest(read_json(folder / CONFIG), folder / CONFIG, REMEDY)
    _check_files(folder, content)
    system = content.get("system")
    if isinstance(system, str) and is_file_name(system):
        content["system"] = check_trusted(system, content.get("source"), folder)
    shapes = stored_shapes(folder / WEIGHTS)
    try:
        model, preprocessor = _build(folder, content, shapes)
    except Exception as error:  # classes of transformers raise exceptions of many kinds for damaged configurations
        raise ValueError(f"{folder / CONFIG}: not the configuration of a saved model: {error}") from error
    model.load_state_dict(load_file(folder / WEIGHTS))
    return Retriever(content["system"], model, preprocessor).eval()


def load_pretrained(name: str) -> Retriever:
    """A CLIP or SigLIP of Hugging Face with its weights, its tokenizer and its image preprocessing."""
    model = build("clip", clip=name)
    return Retriever("clip", model, Preprocessor(tokenizer=name, pixels=pretrained_transform(name))).eval()


def _what_it_is(folder: Path) -> str:
    """What was given in place of a model, as far as it is known."""
    if not folder.exists():
        return "no such folder; "
    kinds = {"index.json": "a search index", "features.json": "a dataset of features"}
    if folder.is_file():
        return "it is a file; "
    return next((f"it is {kind}; " for name, kind in kinds.items() if (folder / name).is_file()), "")


def _check_files(folder: Path, config: dict[str, Any]) -> None:
    """Check the model files of a finished run or of a saved model. A run in training has no checksums yet."""
    if (folder / MACHINE).is_file():
        manifest = folder / MACHINE
        checksums = checked_manifest(read_json(manifest), manifest, REMEDY).get(CHECKSUMS)
        if isinstance(checksums, dict):
            model_files = (CONFIG, WEIGHTS, VOCABULARY, TOKENIZER)
            checksums = {name: value for name, value in checksums.items() if name.split("/")[0] in model_files}
    elif CHECKSUMS in config:
        manifest, checksums = folder / CONFIG, config[CHECKSUMS]
    else:
        return
    check_checksums(folder, checksums, manifest, REMEDY)


def _build(folder: Path, content: Any, shapes: Shapes) -> tuple[RetrievalModel, Preprocessor]:
    """Build the model, with random weights, and its preprocessor from the content of config.json."""
    settings, preprocessor = content["settings"], dict(content["preprocessor"])
    spec = system_of(content["system"]).spec
    for part in (spec.vision, spec.text):
        if part is not None and not isinstance(settings.get(part), (dict, type(None))):
            raise ValueError(f"{part} must be a configuration, got {settings[part]!r}")
    model = build_for_weights(content["system"], settings, shapes, folder / WEIGHTS)
    if preprocessor.pop("vocabulary"):
        preprocessor["vocabulary"] = vocabulary = Vocabulary.load(folder / VOCABULARY)
        if model.settings.vocab_size != len(vocabulary):
            raise ValueError(f"{VOCABULARY} has {len(vocabulary)} words, the model {model.settings.vocab_size}")
    if preprocessor["tokenizer"] is not None:
        preprocessor["tokenizer"] = str(folder / TOKENIZER)
    preprocessor["sides"] = SIDES[preprocessor.get("sides", IMAGE_TEXT.kind)]
    if preprocessor["pixels"] is not None:
        pixels = preprocessor["pixels"]
        preprocessor["pixels"] = TransformSettings(**pixels | {name: tuple(pixels[name]) for name in ("mean", "std")})
    return model, Preprocessor(**preprocessor)


def tokenize(
    spec: SystemSpec, texts: Sequence[str], tokenizer: Vocabulary | str | None, max_tokens: int | None
) -> TokenizedCaptions:
    """Tokenize with a vocabulary or a named tokenizer; normalize and truncate before that if the system does."""
    assert tokenizer is not None
    if spec.normalize_captions:
        max_tokens = min(MAX_TOKENS, max_tokens or MAX_TOKENS)
        texts = [normalize_caption(text, max_tokens - 2) for text in texts]  # 2: start and end token
    return (
        tokenize_captions(texts, tokenizer)
        if isinstance(tokenizer, Vocabulary)
        else tokenize_pretrained(texts, tokenizer, max_length=max_tokens)
    )


def _text_model(model: RetrievalModel) -> dict[str, Any] | None:
    """Return the configuration of a built model's text model; None if it has a word vocabulary."""
    text = model.spec.text
    return None if text is None else getattr(model.settings, text)


def load_original(
    system: str, path: str | Path, *, vocabulary: Path | None = None, tokenizer: str | None = None, **settings: Any
) -> Retriever:
    """Load a checkpoint of the original authors, in evaluation mode, without executing code in it.

    With their vocabulary, or a tokenizer for BERT, the model also embeds texts. Settings are read from the file;
    `settings` overrides them.
    """
    model = original_model(system, path, **settings)
    words = import_vocabulary(vocabulary) if vocabulary is not None else None
    vocab_size = getattr(model.settings, "vocab_size", None)
    extra = EXTRA_WORDS.get(system, ())
    if words is not None and extra and vocab_size == len(words) + len(extra):
        words = Vocabulary((*words.words, *extra))  # the original program adds them at startup
    if words is not None and vocab_size != len(words):
        raise ValueError(f"{vocabulary} has {len(words)} words, the model in {path} has {vocab_size}")
    if tokenizer is not None and _text_model(model) is None:
        raise ValueError(f"--tokenizer is for models with BERT; {system} has a word vocabulary: give --vocabulary")
    pixels = None
    if model.spec.transform == "squash" and model.spec.vision is not None:
        pixels = squash_transform(image_size_of(getattr(model.settings, model.spec.vision)))
    elif isinstance(model, TrainableBackbone) and model.has_backbone:
        pixels = TransformSettings()
    return Retriever(system, model, Preprocessor(vocabulary=words, tokenizer=tokenizer, pixels=pixels)).eval()
