"""COCOS on Flickr8k: the study's Tables 2 to 4 with corrected counters, and the push on human-judged pairs."""

from collections import defaultdict
from pathlib import Path
from statistics import mean, stdev

from scipy.stats import spearmanr

STUDY = ("triplet", "triplet-sh", "nt-xent", "smooth-ap")
SYSTEMS = {"heads": "heads", "vsepp": "VSE++"}
DIRECTIONS = ("i2t", "t2i")
OWN_KEYS = {
    "triplet": ("C_q", "C_B", "C_0"),
    "triplet-sh": ("C_q", "C_B", "C_0"),
    "nt-xent": ("C_qv", "W_neg", "W_pos"),
    "smooth-ap": ("C_q", "C_0"),
}
GENERAL = ("negatives", "effective", "hardest_share", "silent")
MEASURES = {"negatives": "contributing negatives (1 % of the largest)", "effective": "effective negatives"}


def line_of(line: dict, run: Path, judgments: Path) -> dict:
    """The common line of a run, plus counts of the study's four objectives and the push on judged pairs."""
    from tercet.analysis.reports.loaded_run import open_run_folder

    loaded = open_run_folder(run)
    return line | counts_of(loaded) | judged_of(loaded, judgments)


def counts_of(loaded) -> dict:
    from tercet.analysis.reports.cocos_report import count_run

    counts = {name: count_run(loaded, loaded.objective_on_run(name, {})) for name in STUDY}
    published = count_run(loaded, loaded.objective, as_published=True)
    return {
        "batches": counts[loaded.objective.name].batches,
        "cocos": rounded({name: {"mean": each.mean, "std": each.std} for name, each in counts.items()}),
        "published": rounded({"mean": published.mean, "std": published.std}),
    }


def judged_of(loaded, judgments: Path) -> dict:
    """For nt-xent runs all registered objectives, else the run's own; with the difference to triplet-sh."""
    from tercet.analysis.reports.human_judgments import difference, even_share, push_on_judged
    from tercet.data.flickr8k_judgments import read_judgments
    from tercet.objectives import OBJECTIVES

    own = loaded.objective.name
    verdicts = read_judgments(judgments, loaded.split(loaded.held_out))
    names = list(OBJECTIVES) if own == "nt-xent" else [own]
    pushes = {name: push_on_judged(loaded, loaded.objective_on_run(name, {}), verdicts) for name in names}
    baseline = pushes.get("triplet-sh")
    content = {name: push.content() for name, push in pushes.items()}
    if baseline is not None:
        for name, push in pushes.items():
            content[name]["over_triplet_sh"] = list(difference(push, baseline))
    even = round(even_share(verdicts, loaded.held_out.owners.numpy()), 6)
    return {"judged": rounded(content), "judged_even": even}


def rounded(content):
    if isinstance(content, dict):
        return {name: rounded(value) for name, value in content.items()}
    if isinstance(content, list):
        return [rounded(value) for value in content]
    return round(content, 5) if isinstance(content, float) else content


def page(lines: list[dict]) -> str:
    runs = defaultdict(lambda: defaultdict(list))  # system -> objective -> lines by seed
    for line in sorted(lines, key=lambda line: line["seed"]):
        runs[line["settings"]["model"]][line["settings"]["objective"]].append(line)
    return "\n".join(
        [
            *_introduction(runs),
            "## The study's Tables 2 to 4",
            "",
            "Each objective at the weights of its own runs. First the corrected count, then in parentheses the count",
            "of the released counter on the same batches, if it differs; mean over seeds of the mean over batches ±",
            "mean of the std over batches.",
            "",
            *_table_2(runs),
            *_table_3(runs),
            *_table_4(runs),
            "## Without a threshold",
            "",
            "effective: (sum of |g|)² / sum of g² over a query's negatives. hardest share: share of the push on the",
            "most pushed negative. silent: number of queries whose gradient is exactly zero.",
            "",
            *_general(runs),
            "## Every objective at every optimum",
            "",
            "Effective negatives (mean of both directions) of the objective in the column, at the weights trained with",
            "the objective in the row: for example, NT-Xent's gradient at triplet's optimum.",
            "",
            *_crossed(runs),
            *_nearly_collapsed(runs),
            *_claim(runs),
            *_judged(runs),
        ]
    )


def _introduction(runs) -> list[str]:
    recalls = []
    for system, label in SYSTEMS.items():
        for name in STUDY:
            lines = runs[system][name]
            rsum = [line["metrics"]["rsum"] for line in lines]
            r1 = [[line["metrics"][f"{direction}_r1"] for line in lines] for direction in DIRECTIONS]
            recalls.append(
                f"| {label} | {name} | {_mean_and_std(r1[0])} | {_mean_and_std(r1[1])} | {_mean_and_std(rsum)} |"
            )
    heads, vsepp = (runs[system]["nt-xent"][0]["settings"] for system in SYSTEMS)
    seeds = len(runs["heads"]["nt-xent"])
    return [
        "# Counting contributing samples on Flickr8k",
        "",
        "Bleeker and de Rijke (ECIR 2022) count the samples behind an objective's gradient at its best checkpoint and",
        "conclude that the fewer contribute, the better the recall. Two of their released counters read the wrong",
        "entries (docs/dissecting.md). These are the same tables with corrected counters, next to the released ones.",
        "",
        f"6,000 training images, {seeds} seeds, weights selected on validation, no dropout, all training captions once",
        "in shuffled batches of 128 (smooth-ap: 128 images with five captions each), epsilon 0.01. heads: on frozen",
        f"EfficientNet-Lite2 and MiniLM features, embed_dim {heads['model_settings']['embed_dim']}, "
        f"{heads['epochs']} epochs. VSE++: on the",
        f"same image features, word embeddings from scratch, embed_dim {vsepp['model_settings']['embed_dim']}, "
        f"{vsepp['epochs']} epochs with learning rate {vsepp['learning_rate']:g}, triplet-sh",
        "after one epoch of triplet. Features, dimensions and training length differ from the study: the numbers are",
        "not comparable to its numbers, the order may be.",
        "",
        "| system | trained with | i2t R@1 | t2i R@1 | rsum |",
        "|---|---|---:|---:|---:|",
        *recalls,
        "",
    ]


def _table_2(runs) -> list[str]:
    return _own_table(runs, "Table 2: triplet and triplet-sh", ("triplet", "triplet-sh"), ("C_q", "C_B", "C_0"))


def _table_3(runs) -> list[str]:
    return _own_table(runs, "Table 3: NT-Xent", ("nt-xent",), OWN_KEYS["nt-xent"])


def _table_4(runs) -> list[str]:
    return _own_table(runs, "Table 4: SmoothAP (128 image and 640 caption queries)", ("smooth-ap",), ("C_q", "C_0"))


def _own_table(runs, title: str, names: tuple[str, ...], keys: tuple[str, ...]) -> list[str]:
    headings = [f"{direction} {key}" for direction in DIRECTIONS for key in keys]
    rows = []
    for system, label in SYSTEMS.items():
        for name in names:
            lines = runs[system][name]
            cells = [_own_cell(lines, name, direction, key) for direction in DIRECTIONS for key in keys]
            rows.append(f"| {label} | {name} | {' | '.join(cells)} |")
    return [f"### {title}", "", f"| system | objective | {' | '.join(headings)} |", _rule(2, len(headings)), *rows, ""]


def _own_cell(lines: list[dict], name: str, direction: str, key: str) -> str:
    corrected, released = (
        [mean(each[statistic][direction][key] for each in counts) for statistic in ("mean", "std")]
        for counts in ([line["cocos"][name] for line in lines], [line["published"] for line in lines])
    )
    is_equal = abs(corrected[0] - released[0]) < 0.005 * max(1, abs(corrected[0]))
    digits = 1 if max(corrected[0], released[0]) >= 10 else 2
    text = f"{corrected[0]:.{digits}f} ± {corrected[1]:.{digits}f}"
    return text if is_equal else f"{text} (released: {released[0]:.{digits}f})"


def _general(runs) -> list[str]:
    headings = [f"{direction} {key.replace('_', ' ')}" for direction in DIRECTIONS for key in GENERAL]
    rows = []
    for system, label in SYSTEMS.items():
        for name in STUDY:
            counts = [line["cocos"][name]["mean"] for line in runs[system][name]]
            cells = [
                f"{mean(each[direction][key] for each in counts):.2f}" for direction in DIRECTIONS for key in GENERAL
            ]
            rows.append(f"| {label} | {name} | {' | '.join(cells)} |")
    return [f"| system | objective | {' | '.join(headings)} |", _rule(2, len(headings)), *rows, ""]


def _crossed(runs) -> list[str]:
    rows = []
    for system, label in SYSTEMS.items():
        for trained in STUDY:
            cells = [
                f"{mean(_count(line, counted, 'effective') for line in runs[system][trained]):.1f}" for counted in STUDY
            ]
            rows.append(f"| {label} | {trained} | {' | '.join(cells)} |")
    return [f"| system | trained with | {' | '.join(STUDY)} |", _rule(2, len(STUDY)), *rows, ""]


def collapsed(system_runs) -> list[str]:
    """Objectives whose runs have nearly every negative active: all similarities differ by less than the margin."""
    return [name for name in STUDY if mean(_count(line, "triplet", "effective") for line in system_runs[name]) > 100]


def _nearly_collapsed(runs) -> list[str]:
    names = [f"{label} trained with {name}" for system, label in SYSTEMS.items() for name in collapsed(runs[system])]
    if not names:
        return []
    return [f"{' and '.join(names)}: nearly all similarities differ by less than the margin, close to collapse.", ""]


def _claim(runs) -> list[str]:
    """Fewer contributing samples, better recall?"""
    heading = ["## Do fewer contributing samples mean better recall?", ""]
    rows, tested, too_early = [], [], []
    for system, label in SYSTEMS.items():
        unusable = collapsed(runs[system])
        if unusable:
            too_early.append(f"{label} (its {' and '.join(unusable)} runs nearly collapsed)")
        lines = [line for name in STUDY for line in runs[system][name]]
        rsum = [line["metrics"]["rsum"] for line in lines]
        for key, meaning in MEASURES.items():
            counts = [_count(line, line["settings"]["objective"], key) for line in lines]
            correlation = spearmanr(counts, rsum).statistic
            order = sorted(STUDY, key=lambda name, key=key: mean(_count(x, name, key) for x in runs[system][name]))
            best = max(STUDY, key=lambda name: mean(x["metrics"]["rsum"] for x in runs[system][name]))
            verdict = "too early to tell" if unusable else _verdict(order.index(best) == 0, correlation < 0)
            if not unusable:
                tested.append(verdict)
            rows.append(
                f"| {label} | {meaning} | {correlation:+.2f} | {', '.join(order)} | {best} | "
                f"{order.index(best) + 1} of {len(order)} | {verdict} |"
            )
    headings = "| system | count | rank correlation with rsum | fewest first | best rsum | its position | verdict |"
    verdict = (
        f"The claim holds if the objective with the fewest contributing samples has the best recall and the "
        f"correlation is negative: it holds in {tested.count('holds')} of the {len(tested)} rows that can be judged."
        + (f" Too early to tell: {', '.join(too_early)}; those runs need more training." if too_early else "")
    )
    note = (
        "Rank correlation (Spearman) over all runs of a system. Runs with the same objective are not independent: "
        f"there are {len(STUDY)} objectives, and no order of {len(STUDY)} is significant at 5 % by itself. With this "
        "few objectives a counterexample can refute the claim, but nothing here can prove it. smooth-ap has 635 "
        "negatives per image, the others 127; `negatives` is a mean over all queries, `effective` over those that push."
    )
    return [*heading, headings, "|---|---|---:|---|---|---|---|", *rows, "", verdict, "", note, ""]


def _verdict(fewest_is_best: bool, negative: bool) -> str:
    if fewest_is_best and negative:
        return "holds"
    return "holds in part" if fewest_is_best or negative else "does not hold"


def _judged(runs) -> list[str]:
    even = runs["heads"]["nt-xent"][0]["judged_even"]
    rows = []
    for system, label in SYSTEMS.items():
        for name in STUDY:
            rows.append(
                f"| {label} | {name} | {_judged_cells([x['judged'][name] for x in runs[system][name]], even)} |"
            )
    nt_xent_rows = []
    names = sorted(
        runs["heads"]["nt-xent"][0]["judged"],
        key=lambda name: mean(x["judged"][name]["share"] for x in runs["heads"]["nt-xent"]),
    )
    for name in names:
        cells = [_judged_cells([x["judged"][name] for x in runs[system]["nt-xent"]], even) for system in SYSTEMS]
        nt_xent_rows.append(f"| {name} | {cells[0]} | {cells[1].split(' | ')[0]} |")
    return [
        "## Push on negatives that people judged as matching",
        "",
        "Flickr8k has human judgments of 51,000 pairs of the 1,000 test images and 1,000 of their captions (experts: a",
        "mean of at least 3 of 4; crowd: majority). Some pairs that the dataset treats as negatives are judged as",
        "matching. In batches of 128 of these captions: the share of an objective's push on judged negatives that",
        f"falls on matching ones; if all were pushed equally, it would be {100 * even:.1f} %. Mean over seeds; the",
        "interval (95 % bootstrap, resampling both images of a pair) is from the lowest to the highest bound over the",
        "seeds. Judged pairs were chosen by other systems, not at random: the share is about hard negatives. The last",
        "column is the share of all push that falls on matching pairs, a lower bound: unjudged pairs may match too.",
        "",
        "Each objective at its own runs:",
        "",
        "| system | objective | share, % | interval | times even | judged, % of push | at least, % of push |",
        "|---|---|---:|---|---:|---:|---:|",
        *rows,
        "",
        "Every registered objective at the weights of the nt-xent runs, so that only the gradient differs:",
        "",
        "| objective | heads: share, % | interval | times even | judged, % of push | at least, % of push | VSE++: % |",
        "|---|---:|---|---:|---:|---:|---:|",
        *nt_xent_rows,
        "",
        *_conclusion(runs, even),
        "",
    ]


def _conclusion(runs, even: float) -> list[str]:
    lines = runs["heads"]["nt-xent"]
    share = {name: mean(x["judged"][name]["share"] for x in lines) for name in lines[0]["judged"]}
    order = sorted(share, key=lambda name: share[name])
    intervals = {name: [x["judged"][name]["over_triplet_sh"] for x in lines] for name in order}
    different = [name for name in order if all(low > 0 or high < 0 for low, high in intervals[name])]
    less = [name for name in different if share[name] < share["triplet-sh"]]
    more = [name for name in different if share[name] > share["triplet-sh"]]
    return [
        f"At the same weights, shares are from {share[order[0]] / even:.1f} ({order[0]}) to "
        f"{share[order[-1]] / even:.1f} ({order[-1]}) times the even share.",
        "Compared with triplet-sh on the same images (95 % interval of the difference, every seed), less of the push",
        f"falls on matching pairs with {', '.join(less) or 'none'}; more with {', '.join(more) or 'none'}.",
    ]


def _judged_cells(pushes: list[dict], even: float) -> str:
    share = mean(push["share"] for push in pushes)
    low, high = min(push["interval"][0] for push in pushes), max(push["interval"][1] for push in pushes)
    judged, at_least = (mean(push[key] for push in pushes) for key in ("judged", "at_least"))
    return (
        f"{100 * share:.1f} | {100 * low:.1f} to {100 * high:.1f} | {share / even:.1f} | {100 * judged:.1f} | "
        f"{100 * at_least:.1f}"
    )


def _count(line: dict, name: str, key: str) -> float:
    """Mean of both directions."""
    return mean(line["cocos"][name]["mean"][direction][key] for direction in DIRECTIONS)


def _mean_and_std(values: list[float]) -> str:
    return f"{mean(values):.1f} ± {stdev(values):.1f}" if len(values) > 1 else f"{values[0]:.1f}"


def _rule(text_columns: int, number_columns: int) -> str:
    return "|" + "---|" * text_columns + "---:|" * number_columns
