"""COCOS in depth on Flickr8k: the study's Tables 2 to 4 with corrected counters, and what people say of the push."""

from collections import defaultdict
from pathlib import Path
from statistics import mean, stdev

from scipy.stats import spearmanr

STUDY = ("triplet", "triplet-sh", "nt-xent", "smooth-ap")
SYSTEMS = {"heads": "heads", "vsepp": "VSE++"}
SIDES = ("i2t", "t2i")
OWN_KEYS = {
    "triplet": ("C_q", "C_B", "C_0"),
    "triplet-sh": ("C_q", "C_B", "C_0"),
    "nt-xent": ("C_qv", "W_neg", "W_pos"),
    "smooth-ap": ("C_q", "C_0"),
}
GENERAL = ("negatives", "effective", "hardest_share", "silent")
MEASURES = {"negatives": "contributing negatives (1 % of the largest)", "effective": "effective negatives"}


def line_of(line: dict, run: Path, judgements: Path) -> dict:
    """With counts of the study's four objectives at the run's weights, and what falls on judged pairs."""
    from tercet.dissection.opened import open_run_folder

    opened = open_run_folder(run)
    return line | counts_of(opened) | judged_of(opened, judgements)


def counts_of(opened) -> dict:
    from tercet.dissection.cocos import count_run

    counted = {name: count_run(opened, opened.looked_at(name, {})) for name in STUDY}
    published = count_run(opened, opened.objective, as_published=True)
    return {
        "batches": counted[opened.objective.name].batches,
        "cocos": rounded({name: {"mean": each.mean, "std": each.std} for name, each in counted.items()}),
        "published": rounded({"mean": published.mean, "std": published.std}),
    }


def judged_of(opened, judgements: Path) -> dict:
    """The catalogue at the optimum of nt-xent, elsewhere the run's own objective, each beside triplet-sh."""
    from tercet.data.judgements import read_judgements
    from tercet.dissection.judged import difference, even_share, push_on_judged
    from tercet.objectives import CATALOGUE

    own = opened.objective.name
    said = read_judgements(judgements, opened.split(opened.held_out))
    looked_at = list(CATALOGUE) if own == "nt-xent" else [own]
    pushes = {name: push_on_judged(opened, opened.looked_at(name, {}), said) for name in looked_at}
    beside = pushes.get("triplet-sh")
    content = {name: each.content() for name, each in pushes.items()}
    if beside is not None:
        for name, each in pushes.items():
            content[name]["over_triplet_sh"] = list(difference(each, beside))
    even = round(even_share(said, opened.held_out.owners.numpy()), 6)
    return {"judged": rounded(content), "judged_even": even}


def rounded(content):
    if isinstance(content, dict):
        return {name: rounded(part) for name, part in content.items()}
    if isinstance(content, list):
        return [rounded(part) for part in content]
    return round(content, 5) if isinstance(content, float) else content


def page(lines: list[dict]) -> str:
    runs = defaultdict(lambda: defaultdict(list))  # system -> objective -> lines by seed
    for line in sorted(lines, key=lambda line: line["seed"]):
        runs[line["settings"]["model"]][line["settings"]["objective"]].append(line)
    return "\n".join(
        [
            *_beginning(runs),
            "## The study's Tables 2 to 4",
            "",
            "Each objective at the weights of its own runs. First the corrected count, behind it what the released",
            "counter prints for the same batches; mean over seeds of the mean over batches ± mean of the std over",
            "batches.",
            "",
            *_table_2(runs),
            *_table_3(runs),
            *_table_4(runs),
            "## Without a threshold",
            "",
            "effective: (sum of |g|)² / sum of g² over a query's negatives. hardest share: how much of the push the",
            "most pushed negative carries. silent: queries whose gradient is exactly zero.",
            "",
            *_general(runs),
            "## Every objective at every optimum",
            "",
            "Effective negatives (mean of both directions) of the objective in the column, at the weights that the",
            "objective in the row was trained to: how would NT-Xent's gradient look at triplet's optimum?",
            "",
            *_crossed(runs),
            *_nearly_collapsed(runs),
            *_claim(runs),
            *_judged(runs),
        ]
    )


def _beginning(runs) -> list[str]:
    recalls = []
    for system, shown in SYSTEMS.items():
        for name in STUDY:
            of = runs[system][name]
            numbers = [line["metrics"]["rsum"] for line in of]
            r1 = [[line["metrics"][f"{side}_r1"] for line in of] for side in SIDES]
            recalls.append(f"| {shown} | {name} | {_spread(r1[0])} | {_spread(r1[1])} | {_spread(numbers)} |")
    heads, vsepp = (runs[system]["nt-xent"][0]["settings"] for system in SYSTEMS)
    seeds = len(runs["heads"]["nt-xent"])
    return [
        "# Counting contributing samples on Flickr8k",
        "",
        "Bleeker and de Rijke (ECIR 2022) count the samples behind an objective's gradient at its best checkpoint and",
        "conclude that the fewer contribute, the better the recall. Two of the counters they released look in the",
        "wrong place (docs/dissecting.md). Here are the same tables with corrected counters, the released beside them.",
        "",
        f"6,000 training photos, {seeds} seeds, weights chosen on validation, no dropout, all training captions once",
        "in shuffled batches of 128 (smooth-ap: 128 images with five captions each), epsilon 0.01. Heads on frozen",
        f"EfficientNet-Lite2 and MiniLM features, joint space {heads['model_settings']['joint_dim']}, "
        f"{heads['epochs']} epochs; VSE++ on the",
        f"same image vectors, words from scratch, joint space {vsepp['model_settings']['joint_dim']}, "
        f"{vsepp['epochs']} epochs at {vsepp['learning_rate']:g}, triplet-sh",
        "with one epoch of triplet first. Not the study's features, widths or length of training: numbers are not",
        "comparable to its own, the order may be.",
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
    headings = [f"{side} {key}" for side in SIDES for key in keys]
    rows = []
    for system, shown in SYSTEMS.items():
        for name in names:
            of = runs[system][name]
            cells = [_own_cell(of, name, side, key) for side in SIDES for key in keys]
            rows.append(f"| {shown} | {name} | {' | '.join(cells)} |")
    return [f"### {title}", "", f"| system | objective | {' | '.join(headings)} |", _rule(2, len(headings)), *rows, ""]


def _own_cell(of: list[dict], name: str, side: str, key: str) -> str:
    corrected, released = (
        [mean(each[part][side][key] for each in counts) for part in ("mean", "std")]
        for counts in ([line["cocos"][name] for line in of], [line["published"] for line in of])
    )
    same = abs(corrected[0] - released[0]) < 0.005 * max(1, abs(corrected[0]))
    digits = 1 if max(corrected[0], released[0]) >= 10 else 2
    first = f"{corrected[0]:.{digits}f} ± {corrected[1]:.{digits}f}"
    return first if same else f"{first} (released: {released[0]:.{digits}f})"


def _general(runs) -> list[str]:
    headings = [f"{side} {key.replace('_', ' ')}" for side in SIDES for key in GENERAL]
    rows = []
    for system, shown in SYSTEMS.items():
        for name in STUDY:
            counts = [line["cocos"][name]["mean"] for line in runs[system][name]]
            cells = [f"{mean(each[side][key] for each in counts):.2f}" for side in SIDES for key in GENERAL]
            rows.append(f"| {shown} | {name} | {' | '.join(cells)} |")
    return [f"| system | objective | {' | '.join(headings)} |", _rule(2, len(headings)), *rows, ""]


def _crossed(runs) -> list[str]:
    rows = []
    for system, shown in SYSTEMS.items():
        for trained in STUDY:
            cells = [
                f"{mean(_both(line, counted, 'effective') for line in runs[system][trained]):.1f}" for counted in STUDY
            ]
            rows.append(f"| {shown} | {trained} | {' | '.join(cells)} |")
    return [f"| system | trained with | {' | '.join(STUDY)} |", _rule(2, len(STUDY)), *rows, ""]


def collapsed(of_system) -> list[str]:
    """Objectives whose runs keep nearly every negative active: all similarities within the margin of each other."""
    return [name for name in STUDY if mean(_both(line, "triplet", "effective") for line in of_system[name]) > 100]


def _nearly_collapsed(runs) -> list[str]:
    of = [f"{shown} trained with {name}" for system, shown in SYSTEMS.items() for name in collapsed(runs[system])]
    if not of:
        return []
    return [f"{' and '.join(of)}: nearly all similarities lie within the margin of each other, close to collapse.", ""]


def _claim(runs) -> list[str]:
    """Fewer contributing samples, better recall?"""
    said = ["## Do fewer contributing samples mean better recall?", ""]
    rows, tested, too_early = [], [], []
    for system, shown in SYSTEMS.items():
        unusable = collapsed(runs[system])
        if unusable:
            too_early.append(f"{shown} (its {' and '.join(unusable)} runs nearly collapsed)")
        of = [line for name in STUDY for line in runs[system][name]]
        recall = [line["metrics"]["rsum"] for line in of]
        for key, meaning in MEASURES.items():
            counts = [_both(line, line["settings"]["objective"], key) for line in of]
            found = spearmanr(counts, recall)
            order = sorted(STUDY, key=lambda name, key=key: mean(_both(x, name, key) for x in runs[system][name]))
            best = max(STUDY, key=lambda name: mean(x["metrics"]["rsum"] for x in runs[system][name]))
            verdict = "too early to tell" if unusable else _verdict(order.index(best) == 0, found.statistic < 0)
            if not unusable:
                tested.append(verdict)
            rows.append(
                f"| {shown} | {meaning} | {found.statistic:+.2f} | {', '.join(order)} | {best} | "
                f"{order.index(best) + 1} of {len(order)} | {verdict} |"
            )
    headings = "| system | counted | rank correlation with rsum | fewest first | best rsum | its place | verdict |"
    verdict = (
        f"The claim holds when the objective with the fewest contributing samples has the best recall and the "
        f"correlation is negative: it holds in {tested.count('holds')} of the {len(tested)} rows that can be judged."
        + (f" Too early to tell: {', '.join(too_early)}; those runs need more training." if too_early else "")
    )
    note = (
        "Rank correlation (Spearman) over all runs of a system. Runs of one objective are no independent witnesses: "
        f"there are {len(STUDY)} objectives, and no order of {len(STUDY)} is significant at 5 % by itself. With so few "
        "objectives a counterexample can refute the claim, and nothing here could show it. smooth-ap has 635 negatives "
        "an image to choose from, the others 127; `negatives` averages over all queries, `effective` over those that "
        "push."
    )
    return [*said, headings, "|---|---|---:|---|---|---|---|", *rows, "", verdict, "", note, ""]


def _verdict(fewest_is_best: bool, negative: bool) -> str:
    if fewest_is_best and negative:
        return "holds"
    return "holds in part" if fewest_is_best or negative else "does not hold"


def _judged(runs) -> list[str]:
    even = runs["heads"]["nt-xent"][0]["judged_even"]
    rows = []
    for system, shown in SYSTEMS.items():
        for name in STUDY:
            rows.append(
                f"| {shown} | {name} | {_judged_cells([x['judged'][name] for x in runs[system][name]], even)} |"
            )
    at_one = []
    names = sorted(
        runs["heads"]["nt-xent"][0]["judged"],
        key=lambda name: mean(x["judged"][name]["share"] for x in runs["heads"]["nt-xent"]),
    )
    for name in names:
        cells = [_judged_cells([x["judged"][name] for x in runs[system]["nt-xent"]], even) for system in SYSTEMS]
        at_one.append(f"| {name} | {cells[0]} | {cells[1].split(' | ')[0]} |")
    return [
        "## What people say of the negatives",
        "",
        "Flickr8k's judges looked at 51,000 pairs of the 1,000 test photos with 1,000 of their captions (experts: a",
        "mean of at least 3 of 4; crowd: majority) and say of some that they match, which the data holds for",
        "negatives. In batches of 128 of those captions: of an objective's push on judged negatives, the share that",
        f"falls on matching ones; were all pushed alike, it would be {100 * even:.1f} %. Mean over seeds; the interval",
        "(95 %, both images of a pair drawn anew) reaches from the lowest to the highest of the seeds' own. Judged",
        "pairs were chosen by other systems, not at random: the share is about hard-looking ones. The last column is",
        "what falls on matching pairs out of all push, at least: unjudged pairs may match too.",
        "",
        "Each objective at its own runs:",
        "",
        "| system | objective | share, % | interval | times even | judged, % of push | at least, % of push |",
        "|---|---|---:|---|---:|---:|---:|",
        *rows,
        "",
        "Every objective of the catalogue at the weights of nt-xent's runs, so that only the gradient differs:",
        "",
        "| objective | heads: share, % | interval | times even | judged, % of push | at least, % of push | VSE++: % |",
        "|---|---:|---|---:|---:|---:|---:|",
        *at_one,
        "",
        *_lesson(runs, even),
        "",
    ]


def _lesson(runs, even: float) -> list[str]:
    found = runs["heads"]["nt-xent"]
    share = {name: mean(x["judged"][name]["share"] for x in found) for name in found[0]["judged"]}
    order = sorted(share, key=lambda name: share[name])
    over = {name: [x["judged"][name]["over_triplet_sh"] for x in found] for name in order}
    apart = [name for name in order if all(low > 0 or high < 0 for low, high in over[name])]
    fewer = [name for name in apart if share[name] < share["triplet-sh"]]
    more = [name for name in apart if share[name] > share["triplet-sh"]]
    return [
        f"At one and the same optimum shares go from {share[order[0]] / even:.1f} ({order[0]}) to "
        f"{share[order[-1]] / even:.1f} ({order[-1]}) times the even one.",
        "Against triplet-sh on the same images (95 % interval of the difference, every seed), less of the push falls",
        f"on matching pairs with {', '.join(fewer) or 'none'}; more with {', '.join(more) or 'none'}.",
    ]


def _judged_cells(found: list[dict], even: float) -> str:
    share = mean(each["share"] for each in found)
    low, high = min(each["interval"][0] for each in found), max(each["interval"][1] for each in found)
    seen, least = (mean(each[key] for each in found) for key in ("judged", "at_least"))
    return (
        f"{100 * share:.1f} | {100 * low:.1f} to {100 * high:.1f} | {share / even:.1f} | {100 * seen:.1f} | "
        f"{100 * least:.1f}"
    )


def _both(line: dict, name: str, key: str) -> float:
    return mean(line["cocos"][name]["mean"][side][key] for side in SIDES)


def _spread(numbers: list[float]) -> str:
    return f"{mean(numbers):.1f} ± {stdev(numbers):.1f}" if len(numbers) > 1 else f"{numbers[0]:.1f}"


def _rule(words: int, numbers: int) -> str:
    return "|" + "---|" * words + "---:|" * numbers
