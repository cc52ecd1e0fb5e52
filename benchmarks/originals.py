"""The encoders as the original programs formulate them, on the weights of our models, so that outputs are equal.

Written from their published descriptions: batches sorted by caption length and packed, regions in convolutions of
width 1, GPO on every row of a batch with a sort along the region axis, one image for every caption in evaluation;
cross attention one caption at a time, against all images.
"""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from tercet.models.gpo import LEAST, TEMPERATURE, position_codes


def l2norm(x, dim=1):
    return x / x.pow(2).sum(dim=dim, keepdim=True).sqrt()


def gru_last(words, token_ids, lengths):
    """VSE++, VSRN: lengths descending; pack, run, unpack, gather at the last word."""
    packed = pack_padded_sequence(words.embedding(token_ids), lengths, batch_first=True)
    states, lengths = pad_packed_sequence(words.gru(packed)[0], batch_first=True)
    index = (lengths - 1).view(-1, 1, 1).expand(-1, 1, states.size(2))
    return l2norm(torch.gather(states, 1, index).squeeze(1))


def gpo(pool, features, lengths):
    """Weights made anew for every row, then a sort along the axis of regions."""
    longest = int(lengths.max())
    codes = position_codes(longest, pool.code_dim).repeat(len(lengths), 1, 1)
    mask = torch.arange(longest).expand(len(lengths), longest) < lengths[:, None]
    packed = pack_padded_sequence(codes, lengths, batch_first=True, enforce_sorted=False)
    states, _ = pad_packed_sequence(pool.gru(packed)[0], batch_first=True)
    half = states.size(2) // 2
    heights = pool.linear((states[:, :, :half] + states[:, :, half:]) / 2)
    heights[mask == 0] = LEAST
    weights = F.softmax(heights / TEMPERATURE, 1)
    features = features[:, :longest].masked_fill(mask.unsqueeze(-1) == 0, LEAST)
    ordered = features.sort(dim=1, descending=True)[0].masked_fill(mask.unsqueeze(-1) == 0, 0)
    return (ordered * weights).sum(1)


def nearly_unit(x):
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
            F.conv1d(v, part.weight.unsqueeze(-1), part.bias) for part in (block.theta, block.phi, block.g)
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
    count, number, _ = images.shape
    hidden = regions.hidden(images.reshape(count * number, -1)).view(count, number, -1)
    return nearly_unit(gpo(regions.pool, regions.linear(images) + hidden, lengths))


def vse_infinity_captions(model, token_ids, lengths):
    words = model.captions.words
    packed = pack_padded_sequence(words.embedding(token_ids), lengths, batch_first=True)
    states, lengths = pad_packed_sequence(words.gru(packed)[0], batch_first=True)
    half = states.size(2) // 2
    states = (states[:, :, :half] + states[:, :, half:]) / 2
    return nearly_unit(gpo(model.captions.pool, states, lengths))


# system -> how the original encodes images and captions
ORIGINALS = {
    "vsepp": (vsepp_images, vsepp_captions),
    "vsrn": (vsrn_images, vsepp_captions),
    "vse-infinity": (vse_infinity_images, vse_infinity_captions),
}


def evaluated_images(system, model, images, owners, lengths):
    """All pairs of a split in batches sorted by length: an image is encoded for each of its captions.

    Results go to a float64 array by caption, of which the first row of each image is taken.
    """
    encoded = torch.zeros(len(owners), model.settings.joint_dim, dtype=torch.float64)
    for batch in sorted_batches(lengths):
        pixels = torch.stack([images[owner] for owner in owners[batch].tolist()])
        full = torch.full((len(batch),), images.shape[1]) if images.ndim == 3 else None
        encoded[batch] = ORIGINALS[system][0](model, pixels, full).double()
    return encoded[torch.searchsorted(owners, torch.arange(int(owners.max()) + 1))]


def evaluated_captions(system, model, token_ids, lengths):
    encoded = torch.zeros(len(lengths), model.settings.joint_dim, dtype=torch.float64)
    for batch in sorted_batches(lengths):
        longest = int(lengths[batch].max())
        encoded[batch] = ORIGINALS[system][1](model, token_ids[batch, :longest], lengths[batch]).double()
    return encoded


def sorted_batches(lengths, batch_size=128):
    for batch in torch.arange(len(lengths)).split(batch_size):
        yield batch[lengths[batch].argsort(descending=True)]


def scan_similarity(
    images: Tensor, captions: Tensor, lengths: list[int], attends: str, sharpness: float, pooling_sharpness: float
) -> Tensor:
    """S with LogSumExp over words (t2i) or regions (i2t)."""

    def column(regions: Tensor, words: Tensor) -> Tensor:
        queries, contexts = (words, regions) if attends == "t2i" else (regions, words)
        found = cosine(queries, attended(queries, contexts, sharpness))
        return (found * pooling_sharpness).exp().sum(dim=1).log() / pooling_sharpness

    return caption_by_caption(column, images, captions, lengths)


def bfan_similarity(images: Tensor, captions: Tensor, lengths: list[int], focus: str, sharpness: float) -> Tensor:
    """S: the mean cosine of words plus that of regions, each with the relevant parts of the other alone."""

    def column(regions: Tensor, words: Tensor) -> Tensor:
        for_words = cosine(words, attended(words, regions, sharpness, focus)).mean(dim=1)
        return for_words + cosine(regions, attended(regions, words, sharpness, focus)).mean(dim=1)

    return caption_by_caption(column, images, captions, lengths)


def caption_by_caption(
    column: Callable[[Tensor, Tensor], Tensor], images: Tensor, captions: Tensor, lengths: list[int]
) -> Tensor:
    """Each caption at its true length. It is expanded over the images and not copied for each, a favour to the loop."""
    columns = []
    for caption, length in enumerate(lengths):
        columns.append(column(images, captions[caption, :length].expand(len(images), -1, -1)))
    return torch.stack(columns, dim=1)


def attended(queries: Tensor, contexts: Tensor, sharpness: float, focus: str | None = None) -> Tensor:
    """For every query the mix of its context that it attends to, as a vector."""
    products = torch.bmm(contexts, queries.transpose(1, 2))
    scaled = nearly_unit(F.leaky_relu(products, 0.1)).transpose(1, 2).contiguous()  # unit length along the queries
    weights = F.softmax(sharpness * scaled, dim=2)
    if focus is not None:
        weights = focused(weights, focus)
    return torch.bmm(weights, contexts)


def focused(weights: Tensor, focus: str) -> Tensor:
    """Without what is not above the mean (equal) or above a weighted mean (prob), made to add up to 1 again."""
    if focus == "equal":
        above = weights.size(2) * weights - weights.sum(dim=2, keepdim=True)
    else:
        other = weights.unsqueeze(2)
        above = ((weights.unsqueeze(3) - other) * other.sqrt()).sum(dim=3)
    kept = torch.where(above > 0, weights, torch.zeros_like(weights))
    return kept / kept.sum(dim=2, keepdim=True)


def cosine(a: Tensor, b: Tensor) -> Tensor:
    return (a * b).sum(dim=2) / (a.norm(dim=2) * b.norm(dim=2)).clamp(min=1e-8)


def in_shards(similarity: Callable[..., Tensor], images: Tensor, captions: Tensor, lengths: list[int]) -> Tensor:
    """S of a whole split, 128 images x 128 captions at a time."""
    S = images.new_zeros(len(images), len(captions))
    for i in range(0, len(images), 128):
        for j in range(0, len(captions), 128):
            longest = max(lengths[j : j + 128])
            shard = captions[j : j + 128, :longest], lengths[j : j + 128]
            S[i : i + 128, j : j + 128] = similarity(images[i : i + 128], *shard)
    return S
