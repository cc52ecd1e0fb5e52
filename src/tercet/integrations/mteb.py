"""mteb (MIEB): `mteb.evaluate(Encoder(tercet.load(run)), tasks)`; `Search` for models without a dot product."""

import hashlib
from typing import Any

import torch
from torch import Tensor

from tercet.inference import Retriever, as_safetensors
from tercet.integrations import host


class _Named:
    def __init__(self, model: Retriever, name: str | None = None) -> None:
        self.model, self.name = model, name or f"tercet/{model.system.replace('/', '-')}"
        if model.dot_product != isinstance(self, Encoder):
            raise ValueError(f"{model.system}: Encoder is for models with a dot product, Search for the others")

    @property
    def mteb_model_meta(self) -> Any:
        """The revision is a checksum of the weights: results of other weights under the same name are not reused."""
        revision = hashlib.sha256(as_safetensors(self.model.model.state_dict())).hexdigest()[:16]
        about = {"name": self.name, "revision": revision, "modalities": ["image", "text"]}
        return host("mteb").models.ModelMeta.create_empty(overwrites={**about, "similarity_fn_name": "dot"})

    def embed(self, items: Any) -> Tensor:
        """Embed the images, or else the texts, of a batch or a dataset of mteb."""
        if ("image" in items) == ("text" in items):
            raise ValueError("an item must be an image or a text, and not both")
        return self.model.embed_images(items["image"]) if "image" in items else self.model.embed_texts(items["text"])


class Encoder(_Named):
    """mteb's `EncoderProtocol`."""

    def encode(self, inputs: Any, **task: Any) -> Tensor:
        return torch.cat([self.embed(batch) for batch in inputs])

    def similarity(self, embeddings1: Any, embeddings2: Any) -> Tensor:
        return torch.as_tensor(embeddings1) @ torch.as_tensor(embeddings2).T

    def similarity_pairwise(self, embeddings1: Any, embeddings2: Any) -> Tensor:
        return (torch.as_tensor(embeddings1) * torch.as_tensor(embeddings2)).sum(dim=1)


class Search(_Named):
    """mteb's `SearchProtocol`, for cross attention (SCAN, BFAN): compares every query with every document."""

    def index(self, corpus: Any, **task: Any) -> None:
        self.corpus, self.documents, self.of_images = corpus, self.embed(corpus[:]), "image" in corpus[:]

    @torch.inference_mode()
    def search(self, queries: Any, *, top_k: int, top_ranked: Any = None, **task: Any) -> dict[str, dict[str, float]]:
        found, names = {}, list(self.corpus["id"])
        for name, query in zip(queries["id"], self.embed(queries[:]), strict=True):
            sides = (self.documents, query[None]) if self.of_images else (query[None], self.documents)
            of_query = dict(zip(names, self.model.similarity(*sides).flatten().tolist(), strict=True))
            allowed = names if top_ranked is None else top_ranked[name]
            found[name] = {best: of_query[best] for best in sorted(allowed, key=of_query.__getitem__)[::-1][:top_k]}
        return found
