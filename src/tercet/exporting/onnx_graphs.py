"""A dual encoder as two ONNX graphs, one per modality, with everything from pixels and token ids to embeddings.

Heads are exported together with their frozen encoders: what they were trained on is part of the model.
"""

import logging
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from tercet.data.encoders.folded_efficientnet import folded
from tercet.data.encoders.hugging_face import PretrainedImages, PretrainedTexts
from tercet.data.encoders.registry import (
    SIDE,
    EfficientNetLite2,
    image_encoder,
    published_efficientnet,
    text_encoder,
)
from tercet.data.transforms import TransformSettings
from tercet.exporting.pretrained_folders import (
    pads_to_maximum,
    pixels_of,
    write_image_processor,
    write_tokenizer,
)
from tercet.inference import Retriever
from tercet.interfaces import ImageFeatures, TextFeatures
from tercet.models.clip import CLIP
from tercet.models.heads import Head, Heads
from tercet.models.parts.masking import l2_normalize

IMAGES, TEXTS = "image_encoder.onnx", "text_encoder.onnx"
EXAMPLE_ITEMS, EXAMPLE_TOKENS = 2, 7  # of the inputs that the graphs are traced with; both vary at run time


def write_onnx(retriever: Retriever, folder: Path) -> str:
    """Write both graphs, the image preprocessing and the tokenizer."""
    missing = [name for name in ("onnx", "onnxscript") if find_spec(name) is None]
    if missing:
        raise ValueError(f"--to onnx needs {' and '.join(missing)}: pip install 'tercet[onnx]'")
    model = retriever.model
    images: nn.Module
    texts: nn.Module
    if isinstance(model, CLIP):
        pixels = pixels_of(retriever)
        side, images, texts = pixels.side, _CLIPImages(model.model), _CLIPTexts(model.model)
        length = model.max_positions
        write_image_processor(pixels, folder)
        write_tokenizer(retriever, folder)
    elif isinstance(model, Heads):
        texts, length = _head_texts(retriever, model, folder)
        images, side = _head_images(retriever, model, folder)
    else:
        raise ValueError(f"a {retriever.system} model cannot be exported to ONNX: clip models and heads can")
    _write_graph(folder / IMAGES, images, {"pixel_values": torch.zeros(EXAMPLE_ITEMS, 3, side, side)}, "image_embeds")
    fixed = isinstance(model, CLIP) and pads_to_maximum(model)
    ids = torch.ones(EXAMPLE_ITEMS, length if fixed else EXAMPLE_TOKENS, dtype=torch.long)
    inputs = {"input_ids": ids} if fixed else {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
    _write_graph(folder / TEXTS, texts, inputs, "text_embeds", words=None if fixed else length)
    padding = '"max_length"' if fixed else "True"
    return f"""import onnxruntime
from PIL import Image
from transformers import AutoImageProcessor, AutoTokenizer

image_encoder, text_encoder = (onnxruntime.InferenceSession(f"{{name}}_encoder.onnx") for name in ("image", "text"))
preprocess, tokenizer = AutoImageProcessor.from_pretrained("."), AutoTokenizer.from_pretrained(".")
pixels = preprocess([Image.open("photo.jpg").convert("RGB")], return_tensors="np")["pixel_values"]
tokens = tokenizer(["two dogs"], padding={padding}, truncation=True, return_tensors="np")
(images,) = image_encoder.run(None, {{"pixel_values": pixels.astype("float32")}})  # L2-normalized
names = [each.name for each in text_encoder.get_inputs()]
(captions,) = text_encoder.run(None, {{name: tokens[name] for name in names}})
"""


class _CLIPImages(nn.Module):
    def __init__(self, network: Any) -> None:
        super().__init__()
        self.network = network

    def forward(self, pixel_values: Float[Tensor, "image channel height width"]) -> Float[Tensor, "image dim"]:
        return l2_normalize(_pooled(self.network.get_image_features(pixel_values=pixel_values)))


class _CLIPTexts(nn.Module):
    def __init__(self, network: Any) -> None:
        super().__init__()
        self.network = network

    def forward(
        self, input_ids: Int[Tensor, "caption word"], attention_mask: Int[Tensor, "caption word"] | None = None
    ) -> Float[Tensor, "caption dim"]:
        options = {} if attention_mask is None else {"attention_mask": attention_mask}
        return l2_normalize(_pooled(self.network.get_text_features(input_ids=input_ids, **options)))


def _pooled(output: Any) -> Tensor:
    pooled: Tensor = output if isinstance(output, Tensor) else output.pooler_output
    return pooled


class _ProjectedImages(nn.Module):
    """The layers of a frozen encoder and the image head. `grid`: the head pools the cells, all of them real."""

    def __init__(self, network: Any, head: Head, *, grid: bool) -> None:
        super().__init__()
        self.network, self.head, self.grid = network, head, grid

    def forward(self, pixel_values: Float[Tensor, "image channel height width"]) -> Float[Tensor, "image dim"]:
        features = self.network(pixel_values).flatten(2)
        if not self.grid:
            return self.head(features.mean(dim=2), None)
        cells = features.mT
        projected = self.head.linear(cells)
        if self.head.hidden is not None:
            projected = projected + self.head.hidden(cells)
        return l2_normalize(projected.mean(dim=1))


class _PooledImages(nn.Module):
    """An encoder of transformers that returns one vector per image, and the image head."""

    def __init__(self, network: Any, head: Head) -> None:
        super().__init__()
        self.network, self.head = network, head

    def forward(self, pixel_values: Float[Tensor, "image channel height width"]) -> Float[Tensor, "image dim"]:
        if isinstance(self.network, ImageFeatures):
            features = _pooled(self.network.get_image_features(pixel_values=pixel_values))
        else:
            features = _pooled(self.network(pixel_values=pixel_values)).flatten(1)
        return self.head(features, None)


class _ProjectedTexts(nn.Module):
    """The text encoder and the caption head."""

    def __init__(self, network: Any, head: Head) -> None:
        super().__init__()
        self.network, self.head = network, head

    def forward(
        self, input_ids: Int[Tensor, "caption word"], attention_mask: Int[Tensor, "caption word"]
    ) -> Float[Tensor, "caption dim"]:
        if isinstance(self.network, TextFeatures):
            features = self.network.get_text_features(input_ids=input_ids, attention_mask=attention_mask)
            return self.head(_pooled(features), None)
        states = self.network(input_ids=input_ids, attention_mask=attention_mask).last_hidden_state
        mask = attention_mask.unsqueeze(-1).to(states.dtype)
        return self.head(l2_normalize((states * mask).sum(dim=1) / mask.sum(dim=1)), None)


def _head_images(retriever: Retriever, model: Heads, folder: Path) -> tuple[nn.Module, int]:
    """The graph of image encoder and head, and the side of its input; writes the preprocessing."""
    name, grid = retriever.preprocessor.image_encoder, retriever.preprocessor.grid
    if name is None:
        raise ValueError("these heads were trained on image features of an unknown encoder, which cannot be exported")
    encoder = image_encoder(name, grid=grid)
    if isinstance(encoder, EfficientNetLite2):
        if grid and model.image_head.pool is not None:
            raise ValueError("heads that pool a grid with gpo cannot be exported to ONNX: those with mean can")
        mean, std = (127 / 255,) * 3, (128 / 255,) * 3
        write_image_processor(TransformSettings(SIDE, None, mean, std, "bilinear"), folder)
        layers = folded(published_efficientnet(), fused=False)  # the fused operation has no counterpart in ONNX
        return _ProjectedImages(layers, model.image_head, grid=grid), SIDE
    if isinstance(encoder, PretrainedImages) and not grid:
        encoder.processor.save_pretrained(folder)
        network: Any = encoder.model
        size = encoder.processor.crop_size if encoder.processor.do_center_crop else encoder.processor.size
        return _PooledImages(network, model.image_head), int(size["height"])
    raise ValueError(f"the image encoder {name} cannot be exported to ONNX: efficientnet-lite2 and Hugging Face's can")


def _head_texts(retriever: Retriever, model: Heads, folder: Path) -> tuple[nn.Module, int]:
    """The graph of text encoder and head, and the longest caption; writes the tokenizer."""
    name = retriever.preprocessor.text_encoder
    if name is None:
        raise ValueError("these heads were trained on caption features of an unknown encoder, which cannot be exported")
    encoder = text_encoder(name)
    if not isinstance(encoder, PretrainedTexts) or "siglip" in encoder.model.config.model_type:
        raise ValueError(f"the text encoder {name} cannot be exported to ONNX: minilm and most of Hugging Face's can")
    encoder.tokenizer.model_max_length = encoder.max_length
    encoder.tokenizer.save_pretrained(folder)
    return _ProjectedTexts(encoder.model, model.caption_head), encoder.max_length


def _write_graph(
    file: Path, module: nn.Module, inputs: Mapping[str, Tensor], output: str, words: int | None = None
) -> None:
    """`words`: the longest caption, if their length varies."""
    item, word = torch.export.Dim("item"), torch.export.Dim("word", max=words) if words else None
    shapes = {name: {0: item} | ({} if word is None else {1: word}) for name in inputs}
    with _quiet(), torch.no_grad():
        program = torch.onnx.export(
            module.eval(),
            (),
            kwargs=dict(inputs),
            dynamo=True,
            input_names=list(inputs),
            output_names=[output],
            dynamic_shapes=shapes,
            verbose=False,
        )
        assert program is not None
        program.save(file)


@contextmanager
def _quiet() -> Iterator[None]:
    """Without the exporter's notes on operators of packages that are not installed."""
    logger = logging.getLogger("torch.onnx")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.setLevel(level)
