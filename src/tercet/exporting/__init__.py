"""`tercet.export` and `tercet export`: a trained model as a folder that other tools load in one line."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Literal, NamedTuple

from tercet.exporting.model_card import model_card
from tercet.exporting.onnx_graphs import write_onnx
from tercet.exporting.open_clip_folder import write_open_clip
from tercet.exporting.pretrained_folders import write_sentence_transformers, write_transformers
from tercet.inference import CONFIG, Retriever, load
from tercet.names import suggest
from tercet.plugins import is_file_name
from tercet.storage import atomic_directory

Target = Literal["hf", "sentence-transformers", "open-clip", "onnx"]


class Exporter(NamedTuple):
    """How to write a target, and what its model card says."""

    write: Callable[[Retriever, Path], str]
    """Writes the folder and returns the lines of Python that use it there; `ValueError` without a counterpart."""
    library: str
    """Name of the library on the Hugging Face hub."""
    task: str
    """Its `pipeline_tag` on the hub."""


EXPORTERS: Mapping[str, Exporter] = {
    "hf": Exporter(write_transformers, "transformers", "zero-shot-image-classification"),
    "sentence-transformers": Exporter(write_sentence_transformers, "sentence-transformers", "sentence-similarity"),
    "open-clip": Exporter(write_open_clip, "open_clip", "zero-shot-image-classification"),
    "onnx": Exporter(write_onnx, "onnx", "feature-extraction"),
}


def export(model: str | Path, *, to: Target, out: str | Path) -> Path:
    """Write a run or a saved model to the new folder `out`, as another tool loads it; returns the folder.

    `hf`, `sentence-transformers` and `open-clip` take CLIP and SigLIP models, `onnx` also heads together with their
    frozen encoders. Embeddings are those of `tercet.load(model)`. README.md in the folder is a model card.
    """
    if to not in EXPORTERS:
        raise ValueError(f"cannot export to {to!r}{suggest(str(to), EXPORTERS)}; possible: {', '.join(EXPORTERS)}")
    source, target = Path(model), Path(out)
    if target.exists():
        raise ValueError(f"{target} exists already: give another --out")
    refuse_foreign_class(source)
    retriever, exporter = load(source), EXPORTERS[to]
    if retriever.sides.image_is_text:
        raise ValueError(f"{source}: models that compare texts with texts cannot be exported: those of images can")
    with atomic_directory(target) as unfinished:
        usage = exporter.write(retriever, unfinished)
        card = model_card(source, retriever, title=target.name, library=exporter.library, task=exporter.task, use=usage)
        (unfinished / "README.md").write_text(card, encoding="utf-8")
    return target


def refuse_foreign_class(folder: Path) -> None:
    """Refuse a model of a user's file before asking whether the file is trusted."""
    from tercet.data.textio import read_json

    if not (folder / CONFIG).is_file():
        return  # `load` says what is missing
    content: Any = read_json(folder / CONFIG)
    system = content.get("system") if isinstance(content, dict) else None
    if isinstance(system, str) and is_file_name(system):
        raise ValueError(f"{folder}: a {system.rpartition(':')[2]} has no counterpart in other tools")
