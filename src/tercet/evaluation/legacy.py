"""What the original scripts would have printed: their five-fold summaries name numbers wrongly.

SCAN, VSRN, BFAN and AOQ print six times the average i2t recall as "rsum", t2i's average as i2t's, and rsum as t2i's
average; VSE++ prints six times rsum. The lines of each direction are right everywhere, and so is a single fold.
"""

from collections.abc import Callable, Sequence

Metrics = dict[str, float]


def _scan(mean: Metrics) -> tuple[float, float, float]:
    return 6 * mean["i2t_ar"], mean["t2i_ar"], mean["rsum"]


def _vsepp(mean: Metrics) -> tuple[float, float, float]:
    return 6 * mean["rsum"], mean["i2t_ar"], mean["t2i_ar"]


def _right(mean: Metrics) -> tuple[float, float, float]:
    return mean["rsum"], mean["i2t_ar"], mean["t2i_ar"]


# Scripts -> what their five-fold summary calls rsum, average i2t and average t2i, and what that is in truth.
FIVE_FOLD: dict[str, tuple[Callable[[Metrics], tuple[float, float, float]], str]] = {
    "SCAN, VSRN, BFAN, AOQ": (_scan, 'wrong: "rsum" is 6 x average i2t, "i2t" is t2i, "t2i" is rsum'),
    "VSE++": (_vsepp, 'wrong: "rsum" is 6 x rsum'),
    "VSE-infinity": (_right, "right"),
}


def summary(rsum: float, i2t_ar: float, t2i_ar: float, metrics: Metrics) -> list[str]:
    """Five lines in the form that all the scripts share."""
    lines = []
    for side, name in (("i2t", "Image to text"), ("t2i", "Text to image")):
        average = i2t_ar if side == "i2t" else t2i_ar
        numbers = " ".join(f"{metrics[f'{side}_{key}']:.1f}" for key in ("r1", "r5", "r10", "medr", "meanr"))
        lines += [f"Average {side} Recall: {average:.1f}", f"{name}: {numbers}"]
    return [f"rsum: {rsum:.1f}", *lines]


def explain_legacy(metrics: Metrics, folds: Sequence[Metrics] = ()) -> list[str]:
    """The right summary, and beside it what each family of scripts would have printed for the same similarities.

    `folds` are the metrics of each of five folds, and `metrics` their mean; without folds all scripts are right.
    """
    right = summary(*_right(metrics), metrics)
    if not folds:
        return ["Tercet, and all the original scripts on a single fold:", *_indented(right)]
    lines = ["Tercet, mean of the folds:", *_indented(right)]
    for scripts, (named, verdict) in FIVE_FOLD.items():
        lines += [f"{scripts}, five-fold summary ({verdict}):", *_indented(summary(*named(metrics), metrics))]
    return [*lines, "ECIR-22 (Bleeker and de Rijke), five-fold: stops with an error, seven numbers for five places."]


def _indented(lines: list[str]) -> list[str]:
    return [f"  {line}" for line in lines]
