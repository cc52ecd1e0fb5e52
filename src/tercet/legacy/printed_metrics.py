"""Metrics as printed by the papers' scripts, and metric names of other tools.

The five-fold summaries of the original scripts label some numbers wrongly: SCAN, VSRN, BFAN and AOQ print six times
the average i2t recall as "rsum", the average t2i recall as that of i2t, and rsum as the average t2i recall; VSE++
prints six times rsum. The lines of each direction are right everywhere, and so is the summary of a single fold.

"Recall@k" has two meanings. Here and in the papers it is the share of queries with any positive in the top k;
sentence-transformers, mteb and torchmetrics call that accuracy or hit rate, and use recall for the share of positives
found, which is at most 0.2 for k = 1 with five captions per image. They have queries and documents, not images and
captions, so their metrics have the same name in both directions.
"""

from collections.abc import Callable, Sequence

Metrics = dict[str, float]


def _scan(mean: Metrics) -> tuple[float, float, float]:
    return 6 * mean["i2t_ar"], mean["t2i_ar"], mean["rsum"]


def _vsepp(mean: Metrics) -> tuple[float, float, float]:
    return 6 * mean["rsum"], mean["i2t_ar"], mean["t2i_ar"]


def _correct(mean: Metrics) -> tuple[float, float, float]:
    return mean["rsum"], mean["i2t_ar"], mean["t2i_ar"]


# Scripts -> what their five-fold summary prints as (rsum, average i2t, average t2i), and whether that is right.
FIVE_FOLD: dict[str, tuple[Callable[[Metrics], tuple[float, float, float]], str]] = {
    "SCAN, VSRN, BFAN, AOQ": (_scan, 'wrong: "rsum" is 6 x average i2t, "i2t" is t2i, "t2i" is rsum'),
    "VSE++": (_vsepp, 'wrong: "rsum" is 6 x rsum'),
    "VSE-infinity": (_correct, "right"),
}


def summary(rsum: float, i2t_ar: float, t2i_ar: float, metrics: Metrics) -> list[str]:
    """Five lines in the format that all the scripts share."""
    lines = []
    for direction, name in (("i2t", "Image to text"), ("t2i", "Text to image")):
        average = i2t_ar if direction == "i2t" else t2i_ar
        values = " ".join(f"{metrics[f'{direction}_{key}']:.1f}" for key in ("r1", "r5", "r10", "medr", "meanr"))
        lines += [f"Average {direction} Recall: {average:.1f}", f"{name}: {values}"]
    return [f"rsum: {rsum:.1f}", *lines]


def explain_legacy(metrics: Metrics, folds: Sequence[Metrics] = ()) -> list[str]:
    """The correct summary, followed by what each group of scripts prints for the same similarities.

    `folds` are the metrics of each of five folds, and `metrics` their mean; without folds all scripts are right.
    """
    correct = summary(*_correct(metrics), metrics)
    if not folds:
        return ["Tercet, and all the original scripts on a single fold:", *_indented(correct)]
    lines = ["Tercet, mean of the folds:", *_indented(correct)]
    for scripts, (printed, verdict) in FIVE_FOLD.items():
        lines += [f"{scripts}, five-fold summary ({verdict}):", *_indented(summary(*printed(metrics), metrics))]
    return [*lines, "ECIR-22 (Bleeker and de Rijke), five-fold: fails with an error (7 values for 5 fields)."]


def _indented(lines: list[str]) -> list[str]:
    return [f"  {line}" for line in lines]


_DIRECTIONS = ("i2t", "t2i")
_CUTOFFS = (1, 5, 10)
_OPEN_CLIP = {"i2t": "image_to_text", "t2i": "text_to_image"}
_CLIP_BENCHMARK = {"i2t": "text_retrieval", "t2i": "image_retrieval"}
_LAVIS = {"i2t": "txt", "t2i": "img"}

# Our name -> tool -> its name.
ALIASES: dict[str, dict[str, str]] = {
    **{
        f"{d}_r{k}": {
            "open_clip": f"{_OPEN_CLIP[d]}_R@{k}",
            "CLIP_benchmark": f"{_CLIP_BENCHMARK[d]}_recall@{k}",
            "LAVIS": f"{_LAVIS[d]}_r{k}",
            "sentence-transformers": f"cosine_accuracy@{k}",
            "mteb": f"hit_rate_at_{k}",
            "torchmetrics": f"RetrievalHitRate(top_k={k})",
            "eccv_caption": f"coco_5k_r{k}['{d}']",
        }
        for d in _DIRECTIONS
        for k in _CUTOFFS
    },
    **{f"{d}_ar": {"LAVIS": f"{_LAVIS[d]}_r_mean"} for d in _DIRECTIONS},
    **{f"{d}_medr": {"open_clip": f"{_OPEN_CLIP[d]}_median_rank"} for d in _DIRECTIONS},
    **{f"{d}_meanr": {"open_clip": f"{_OPEN_CLIP[d]}_mean_rank"} for d in _DIRECTIONS},
    **{f"{d}_rprecision": {"torchmetrics": "RetrievalRPrecision()"} for d in _DIRECTIONS},
    **{f"{d}_ndcg": {"torchmetrics": "RetrievalNormalizedDCG()"} for d in _DIRECTIONS},
    **{f"eccv_{d}_r{k}": {"eccv_caption": f"eccv_r{k}['{d}']"} for d in _DIRECTIONS for k in _CUTOFFS},
    **{f"cxc_{d}_r{k}": {"eccv_caption": f"cxc_r{k}['{d}']"} for d in _DIRECTIONS for k in _CUTOFFS},
    **{f"eccv_{d}_map_r": {"eccv_caption": f"eccv_map_at_r['{d}']"} for d in _DIRECTIONS},
    **{f"eccv_{d}_rprecision": {"eccv_caption": f"eccv_rprecision['{d}']"} for d in _DIRECTIONS},
    "rsum": {"LAVIS": "6 x r_mean"},
}

# Tools that report recalls as fractions; the papers, LAVIS and Tercet report percent.
FRACTIONS = ("open_clip", "CLIP_benchmark", "sentence-transformers", "mteb", "torchmetrics", "eccv_caption")
