"""What other tools call our metrics. "Recall@k" is two things: here, as in the papers, any positive in the top k.

sentence-transformers, mteb and torchmetrics call that accuracy or hit rate; their recall is the share of positives
found, which five captions an image keep at 0.2 or below for k = 1. They know queries and documents, not images and
captions: their names are the same both ways.
"""

_CUTOFFS = (1, 5, 10)
_OPEN_CLIP = {"i2t": "image_to_text", "t2i": "text_to_image"}
_CLIP_BENCHMARK = {"i2t": "text_retrieval", "t2i": "image_retrieval"}
_LAVIS = {"i2t": "txt", "t2i": "img"}

# Our name -> tool -> its name.
ALIASES: dict[str, dict[str, str]] = {
    **{
        f"{side}_r{k}": {
            "open_clip": f"{_OPEN_CLIP[side]}_R@{k}",
            "CLIP_benchmark": f"{_CLIP_BENCHMARK[side]}_recall@{k}",
            "LAVIS": f"{_LAVIS[side]}_r{k}",
            "sentence-transformers": f"cosine_accuracy@{k}",
            "mteb": f"hit_rate_at_{k}",
            "torchmetrics": f"RetrievalHitRate(top_k={k})",
            "eccv_caption": f"coco_5k_r{k}['{side}']",
        }
        for side in ("i2t", "t2i")
        for k in _CUTOFFS
    },
    **{f"{side}_ar": {"LAVIS": f"{_LAVIS[side]}_r_mean"} for side in ("i2t", "t2i")},
    **{f"{side}_medr": {"open_clip": f"{_OPEN_CLIP[side]}_median_rank"} for side in ("i2t", "t2i")},
    **{f"{side}_meanr": {"open_clip": f"{_OPEN_CLIP[side]}_mean_rank"} for side in ("i2t", "t2i")},
    **{f"{side}_rprecision": {"torchmetrics": "RetrievalRPrecision()"} for side in ("i2t", "t2i")},
    **{f"{side}_ndcg": {"torchmetrics": "RetrievalNormalizedDCG()"} for side in ("i2t", "t2i")},
    **{f"eccv_{side}_r{k}": {"eccv_caption": f"eccv_r{k}['{side}']"} for side in ("i2t", "t2i") for k in _CUTOFFS},
    **{f"cxc_{side}_r{k}": {"eccv_caption": f"cxc_r{k}['{side}']"} for side in ("i2t", "t2i") for k in _CUTOFFS},
    **{f"eccv_{side}_map_r": {"eccv_caption": f"eccv_map_at_r['{side}']"} for side in ("i2t", "t2i")},
    **{f"eccv_{side}_rprecision": {"eccv_caption": f"eccv_rprecision['{side}']"} for side in ("i2t", "t2i")},
    "rsum": {"LAVIS": "6 x r_mean"},
}

# These report recalls as fractions; the papers, LAVIS and Tercet in percent.
FRACTIONS = ("open_clip", "CLIP_benchmark", "sentence-transformers", "mteb", "torchmetrics", "eccv_caption")
