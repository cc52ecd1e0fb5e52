"""The encoders as implemented in the original programs, on the weights of our models, so that outputs are equal.

Written from their published descriptions: batches sorted by caption length and packed, regions in convolutions of
width 1, GPO weights per row of a batch with a sort over regions, every image encoded once per caption in evaluation;
cross attention one caption at a time, against all images.
"""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from tercet.models.parts.gpo import MASK_VALUE, TEMPERATURE, position_codes


def l2norm(x, dim=1):
    return x / x.pow(2).sum(dim=dim, keepdim=True).sqrt()


def gru_last(words, token_ids, lengths):
    """VSE++, VSRN: lengths descending; pack, run the GRU, unpack, gather the state of the last word."""
    packed = pack_padded_sequence(words.embedding(token_ids), lengths, batch_first=True)
    states, lengths = pad_packed_sequence(words.gru(packed)[0], batch_first=True)
    index = (lengths - 1).view(-1, 1, 1).expand(-1, 1, states.size(2))
    return l2norm(torch.gather(states, 1, index).squeeze(1))


def gpo(pool, features, lengths):
    """Compute the weights for every row, then sort along the axis of regions."""
    max_length = int(lengths.max())
    codes = position_codes(max_length, pool.code_dim).repeat(len(lengths), 1, 1)
    mask = torch.arange(max_length).expand(len(lengths), max_length) < lengths[:, None]
    packed = pack_padded_sequence(codes, lengths, batch_first=True, enforce_sorted=False)
    states, _ = pad_packed_sequence(pool.gru(packed)[0], batch_first=True)
    half = states.size(2) // 2
    heights = pool.linear((states[:, :, :half] + states[:, :, half:]) / 2)
    heights[mask == 0] = MASK_VALUE
    weights = F.softmax(heights / TEMPERATURE, 1)
    features = features[:, :max_length].masked_fill(mask.unsqueeze(-1) == 0, MASK_VALUE)
    ordered = features.sort(dim=1, descending=True)[0].masked_fill(mask.unsqueeze(-1) == 0, 0)
    return (ordered * weights).sum(1)


def l2_normalize_eps(x):
    return x / (x.pow(2).sum(dim=-1, keepdim=True).sqrt() + 1e-8)


def vsepp_images(model, images, lengths):
    features = images if model.backbone is None else l2norm(model.backbone.vectors(images))
    return l2norm(model.image_head(features))


def vsepp_captions(model, token_ids, lengths):
    return gru_last(model.words, token_ids, lengths)


def vsrn_images(model, images, lengths):
    regions = model.region_head(images)
    if model.settings.variant != "f30k":
        regions = l2norm(regions)
    v = regions.permute(0, 2, 1)
    for block in model.blocks:
        theta, phi, g = (
            F.conv1d(v, layer.weight.unsqueeze(-1), layer.bias) for layer in (block.theta, block.phi, block.g)
        )
        affinity = torch.matmul(theta.permute(0, 2, 1), phi) / v.size(2)
        y = torch.matmul(affinity, g.permute(0, 2, 1)).permute(0, 2, 1).contiguous()
        y = F.conv1d(y, block.out.weight.unsqueeze(-1), block.out.bias)
        v = block.norm(y) + v
    regions = l2norm(v.permute(0, 2, 1))
    _, hidden = model.reader(regions)
    embedded = hidden[0] if model.final_norm is None else model.final_norm(hidden[0])
    return l2norm(embedded)


def vse_infinity_images(model, images, lengths):
    regions = model.regions
    count, regions_per_image, _ = images.shape
    hidden = regions.hidden(images.reshape(count * regions_per_image, -1)).view(count, regions_per_image, -1)
    return l2_normalize_eps(gpo(regions.pool, regions.linear(images) + hidden, lengths))


def vse_infinity_captions(model, token_ids, lengths):
    words = model.captions.words
    packed = pack_padded_sequence(words.embedding(token_ids), lengths, batch_first=True)
    states, lengths = pad_packed_sequence(words.gru(packed)[0], batch_first=True)
    half = states.size(2) // 2
    states = (states[:, :, :half] + states[:, :, half:]) / 2
    return l2_normalize_eps(gpo(model.captions.pool, states, lengths))


# system -> (encoder of images, encoder of captions)
ORIGINALS = {
    "vsepp": (vsepp_images, vsepp_captions),
    "vsrn": (vsrn_images, vsepp_captions),
    "vse-infinity": (vse_infinity_images, vse_infinity_captions),
}


def encode_split_images(system, model, images, owners, lengths):
    """Encode all pairs of a split in batches sorted by length: an image is encoded once per caption.

    Results are stored in a float64 array by caption; the first row of each image is returned.
    """
    encoded = torch.zeros(len(owners), model.settings.embed_dim, dtype=torch.float64)
    for batch in sorted_batches(lengths):
        features = torch.stack([images[owner] for owner in owners[batch].tolist()])
        region_counts = torch.full((len(batch),), images.shape[1]) if images.ndim == 3 else None
        encoded[batch] = ORIGINALS[system][0](model, features, region_counts).double()
    return encoded[torch.searchsorted(owners, torch.arange(int(owners.max()) + 1))]


def encode_split_captions(system, model, token_ids, lengths):
    encoded = torch.zeros(len(lengths), model.settings.embed_dim, dtype=torch.float64)
    for batch in sorted_batches(lengths):
        max_length = int(lengths[batch].max())
        encoded[batch] = ORIGINALS[system][1](model, token_ids[batch, :max_length], lengths[batch]).double()
    return encoded


def sorted_batches(lengths, batch_size=128):
    for batch in torch.arange(len(lengths)).split(batch_size):
        yield batch[lengths[batch].argsort(descending=True)]


def scan_similarity(
    images: Tensor,
    captions: Tensor,
    lengths: list[int],
    direction: str,
    inverse_temperature: float,
    pooling_inverse_temperature: float,
) -> Tensor:
    """S with LogSumExp over words (t2i) or regions (i2t)."""

    def column(regions: Tensor, words: Tensor) -> Tensor:
        queries, contexts = (words, regions) if direction == "t2i" else (regions, words)
        cosines = cosine(queries, attended(queries, contexts, inverse_temperature))
        return (cosines * pooling_inverse_temperature).exp().sum(dim=1).log() / pooling_inverse_temperature

    return caption_by_caption(column, images, captions, lengths)


def bfan_similarity(
    images: Tensor, captions: Tensor, lengths: list[int], focus: str, inverse_temperature: float
) -> Tensor:
    """S: the mean cosine of words plus that of regions, each attending only to relevant regions or words."""

    def column(regions: Tensor, words: Tensor) -> Tensor:
        for_words = cosine(words, attended(words, regions, inverse_temperature, focus)).mean(dim=1)
        return for_words + cosine(regions, attended(regions, words, inverse_temperature, focus)).mean(dim=1)

    return caption_by_caption(column, images, captions, lengths)


def caption_by_caption(
    column: Callable[[Tensor, Tensor], Tensor], images: Tensor, captions: Tensor, lengths: list[int]
) -> Tensor:
    """Compute S by caption, each at its true length; unlike theirs, it is expanded over images without a copy."""
    columns = []
    for caption, length in enumerate(lengths):
        columns.append(column(images, captions[caption, :length].expand(len(images), -1, -1)))
    return torch.stack(columns, dim=1)


def attended(queries: Tensor, contexts: Tensor, inverse_temperature: float, focus: str | None = None) -> Tensor:
    """Return the attended context vector of every query."""
    products = torch.bmm(contexts, queries.transpose(1, 2))
    scaled = l2_normalize_eps(F.leaky_relu(products, 0.1)).transpose(1, 2).contiguous()  # normalized over the queries
    weights = F.softmax(inverse_temperature * scaled, dim=2)
    if focus is not None:
        weights = focused(weights, focus)
    return torch.bmm(weights, contexts)


def focused(weights: Tensor, focus: str) -> Tensor:
    """Drop weights not above the mean ("equal") or a weighted mean ("prob") and renormalize to sum 1."""
    if focus == "equal":
        above = weights.size(2) * weights - weights.sum(dim=2, keepdim=True)
    else:
        other = weights.unsqueeze(2)
        above = ((weights.unsqueeze(3) - other) * other.sqrt()).sum(dim=3)
    gated = torch.where(above > 0, weights, torch.zeros_like(weights))
    return gated / gated.sum(dim=2, keepdim=True)


def cosine(a: Tensor, b: Tensor) -> Tensor:
    return (a * b).sum(dim=2) / (a.norm(dim=2) * b.norm(dim=2)).clamp(min=1e-8)


def in_shards(similarity: Callable[..., Tensor], images: Tensor, captions: Tensor, lengths: list[int]) -> Tensor:
    """Compute S of a whole split in shards of 128 images x 128 captions."""
    S = images.new_zeros(len(images), len(captions))
    for i in range(0, len(images), 128):
        for j in range(0, len(captions), 128):
            max_length = max(lengths[j : j + 128])
            shard = captions[j : j + 128, :max_length], lengths[j : j + 128]
            S[i : i + 128, j : j + 128] = similarity(images[i : i + 128], *shard)
    return S
