"""CLIP and SigLIP as a folder of transformers, and of sentence-transformers.

The folder holds the weights, their configuration, the image preprocessing and the tokenizer. A folder of
sentence-transformers is the same with three small files that say what its modules are.
"""

from pathlib import Path
from typing import Any

from tercet.data.text.tokenized import pretrained_tokenizer
from tercet.data.transforms import RESAMPLING, TransformSettings
from tercet.hub import transformers_for
from tercet.inference import Retriever
from tercet.models.clip import CLIP
from tercet.storage import write_json

PREPROCESSOR = "preprocessor_config.json"
PROCESSOR_CLASSES = {"clip": "CLIPProcessor", "siglip": "SiglipProcessor"}
"""Types of models with a processor of their own -> its class."""


def write_transformers(retriever: Retriever, folder: Path) -> str:
    """For `AutoModel` and `AutoProcessor`."""
    model = dual_encoder(retriever, "transformers")
    transformers_for("exports").utils.logging.disable_progress_bar()
    model.model.save_pretrained(folder)
    write_image_processor(pixels_of(retriever), folder)
    write_tokenizer(retriever, folder, class_name=PROCESSOR_CLASSES.get(model.model.config.model_type))
    padding = '"max_length"' if pads_to_maximum(model) else "True"
    return f"""from PIL import Image
from transformers import AutoModel, AutoProcessor

model, preprocess = AutoModel.from_pretrained("."), AutoProcessor.from_pretrained(".")
inputs = preprocess(
    text=["two dogs"], images=[Image.open("photo.jpg")], return_tensors="pt", padding={padding}, truncation=True
)
outputs = model(**inputs)
images, captions = outputs.image_embeds, outputs.text_embeds  # L2-normalized
"""


def write_sentence_transformers(retriever: Retriever, folder: Path) -> str:
    """For `SentenceTransformer`, which embeds texts and images with one model. Needs 5.4 or newer."""
    model = dual_encoder(retriever, "sentence-transformers")
    write_transformers(retriever, folder)
    modules = "sentence_transformers.base.modules"
    listed = (("", f"{modules}.transformer.Transformer"), ("1_Normalize", f"{modules}.normalize.Normalize"))
    write_json(
        folder / "modules.json",
        [{"idx": index, "name": str(index), "path": path, "type": name} for index, (path, name) in enumerate(listed)],
    )
    transformer: dict[str, Any] = {
        "transformer_task": "feature-extraction",
        "modality_config": {
            "text": {"method": "get_text_features", "method_output_name": "pooler_output"},
            "image": {"method": "get_image_features", "method_output_name": "pooler_output"},
        },
        "module_output_name": "sentence_embedding",
    }
    if pads_to_maximum(model):
        transformer["processing_kwargs"] = {"text": {"padding": "max_length"}}
    write_json(folder / "sentence_bert_config.json", transformer)
    description = {"model_type": "SentenceTransformer", "similarity_fn_name": "cosine"}
    write_json(folder / "config_sentence_transformers.json", description)
    (folder / "1_Normalize").mkdir()
    write_json(folder / "1_Normalize" / "config.json", dict.fromkeys(INPUT_AND_OUTPUT, "sentence_embedding"))
    return """from PIL import Image
from sentence_transformers import SentenceTransformer

model = SentenceTransformer(".")
captions = model.encode(["two dogs"])
images = model.encode([Image.open("photo.jpg")])
similarity = model.similarity(images, captions)
"""


INPUT_AND_OUTPUT = ("module_input_name", "module_output_name")


def dual_encoder(retriever: Retriever, tool: str) -> CLIP:
    """The model, if it is a CLIP or SigLIP; `ValueError` otherwise."""
    if not isinstance(retriever.model, CLIP):
        raise ValueError(
            f"a {retriever.system} model has no counterpart in {tool}: clip models have one, and heads with their "
            "encoders can be exported with --to onnx"
        )
    return retriever.model


def pads_to_maximum(model: CLIP) -> bool:
    """SigLIP reads captions padded to the maximum length, without a mask."""
    return str(model.model.config.model_type).startswith("siglip")


def pixels_of(retriever: Retriever) -> TransformSettings:
    assert retriever.preprocessor.pixels is not None, "a CLIP reads pixels"
    return retriever.preprocessor.pixels


def write_image_processor(pixels: TransformSettings, folder: Path) -> None:
    """Write the image preprocessing for `AutoImageProcessor`, of any version."""
    squashed = pixels.shorter_side is None
    square = {"height": pixels.side, "width": pixels.side}
    content = {
        "image_processor_type": "CLIPImageProcessor",
        "do_convert_rgb": True,
        "do_resize": True,
        "size": square if squashed else {"shortest_edge": pixels.shorter_side},
        "resample": {name: code for code, name in RESAMPLING.items()}[pixels.resampling],
        "do_center_crop": not squashed,
        "crop_size": square,
        "do_rescale": True,
        "rescale_factor": 1 / 255,
        "do_normalize": True,
        "image_mean": list(pixels.mean),
        "image_std": list(pixels.std),
    }
    write_json(folder / PREPROCESSOR, content)


def write_tokenizer(retriever: Retriever, folder: Path, *, class_name: str | None = None) -> None:
    """Write the tokenizer, which truncates as the model does and, for SigLIP, returns no mask."""
    assert retriever.preprocessor.tokenizer is not None, "a CLIP has a tokenizer of its own"
    tokenizer = pretrained_tokenizer(retriever.preprocessor.tokenizer)
    if retriever.max_tokens is not None:
        tokenizer.model_max_length = retriever.max_tokens
    if isinstance(retriever.model, CLIP) and pads_to_maximum(retriever.model):
        tokenizer.model_input_names = ["input_ids"]
        tokenizer.init_kwargs["model_input_names"] = ["input_ids"]
    if class_name is not None:
        tokenizer._set_processor_class(class_name)
    tokenizer.save_pretrained(folder)
