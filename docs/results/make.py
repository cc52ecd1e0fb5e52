"""Results from run folders: one line of JSON a run, and pages written from those lines alone.

python docs/results/make.py collect goal runs/*_f8k_*     # run folders -> goal.jsonl
python docs/results/make.py collect flickr8k --section heads runs/*_f8k_*    # one section of that page, others are kept
python docs/results/make.py collect cocos --judgements judgments runs/*_f8k_*   # and what people say
python docs/results/make.py write                         # every .jsonl -> its .md
"""

import argparse
import hashlib
import json
import re
import sys
from collections import defaultdict
from pathlib import Path
from statistics import mean, stdev

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))

import aoq  # noqa: E402 - it lies beside this file
import cocos  # noqa: E402
import doctor  # noqa: E402
import flickr8k  # noqa: E402

RECALLS = ("i2t_r1", "i2t_r5", "i2t_r10", "t2i_r1", "t2i_r5", "t2i_r10", "rsum")
HEADINGS = ("i2t R@1", "R@5", "R@10", "t2i R@1", "R@5", "R@10", "rsum")


def line_of(run: Path) -> dict:
    """All that a reader needs to repeat the run; no host and no path."""
    settings = json.loads((run / "settings.json").read_text())
    machine = json.loads((run / "machine.json").read_text())
    final = json.loads((run / "metrics.jsonl").read_text().splitlines()[-1])
    settings["data"] = Path(settings["data"]).name
    settings["start_from"] = None if settings["start_from"] is None else Path(settings["start_from"]).name
    settings["mined"] = None if settings.get("mined") is None else Path(settings["mined"]).name
    given = settings["objective"]
    for which in ("objective", "first_objective"):
        settings[which] = without_path(settings[which])
    return {
        "id": run.name.replace(in_folder_name(given), in_folder_name(settings["objective"])),
        "settings": settings,
        "seed": settings["seed"],
        "commit": machine["commit"],
        "versions": {name: machine[name] for name in ("tercet", "torch", "python")},
        "seconds": round(machine["seconds"], 1),
        "threads": machine["threads"],
        "metrics": {name: value for name, value in final.items() if name not in ("final", "split")},
        "ranks": hashlib.sha256((run / "ranks.npz").read_bytes()).hexdigest()[:16],
    }


def without_path(objective: str | None) -> str | None:
    """One of a file, FILE.py:NAME, by the name of its file."""
    return Path(objective).name if objective is not None and ".py:" in objective else objective


def in_folder_name(objective: str) -> str:
    """As `tercet.runs.open_run` writes it there."""
    return re.sub(r"[^\w.+-]+", "_", objective.replace("/", "+"))[:60]


def flickr8k_line_of(run: Path, section: str) -> dict:
    """With what the statistics need; settings that are at their default are left out."""
    import numpy as np

    from tercet.training.config import train_settings
    from tercet.training.settings import identity_of

    line = line_of(run)
    usual = identity_of(train_settings({"model": line["settings"]["model"]}))
    line["settings"] = {
        name: value for name, value in line["settings"].items() if name not in usual or value != usual[name]
    } | {name: line["settings"][name] for name in ("data", "model", "objective", "seed", "epochs")}
    counted = [
        json.loads(text)["cocos"] for text in (run / "metrics.jsonl").read_text().splitlines() if '"cocos"' in text
    ]
    of_both = [mean(each[side]["negatives"] for side in ("i2t", "t2i")) for each in counted]
    line["contributing_negatives"] = round(mean(of_both), 4)
    line["metrics"] = {name: round(v, 6) if isinstance(v, float) else v for name, v in line["metrics"].items()}
    with np.load(run / "ranks.npz") as ranks:
        line["per_image"] = flickr8k.packed(dict(ranks))
    return line | {"section": section}


def read(name: str) -> list[dict]:
    return [json.loads(line) for line in (HERE / f"{name}.jsonl").read_text().splitlines()]


def cell(numbers: list[float]) -> str:
    return f"{mean(numbers):.2f} ± {stdev(numbers):.2f}" if len(numbers) > 1 else f"{numbers[0]:.1f}"


def goal(lines: list[dict]) -> str:
    """GOAL's Table 2: the same runs by autograd of the loss and by the injected gradient."""
    by_objective = defaultdict(dict)
    for line in lines:
        by_objective[line["settings"]["objective"]][line["seed"]] = line["metrics"]
    names = {
        "hinge_by_autograd.py:hinge": "hinge, autograd of the loss",
        "con/con": "con/con, injected pair gradient",
        "triplet-sh": "triplet-sh, injected pair gradient",
    }
    seeds = sorted(by_objective["con/con"])
    first = lines[0]
    rows = [
        f"| {shown} | " + " | ".join(cell([by_objective[name][seed][key] for seed in seeds]) for key in RECALLS) + " |"
        for name, shown in names.items()
    ]
    loss, gradient = by_objective["hinge_by_autograd.py:hinge"], by_objective["con/con"]
    each = [
        f"| {seed} | " + " | ".join(f"{loss[seed][key]:.2f} / {gradient[seed][key]:.2f}" for key in RECALLS) + " |"
        for seed in seeds
    ]
    largest = max(abs(loss[seed][key] - gradient[seed][key]) for seed in seeds for key in RECALLS[:-1])
    same = sum(all(loss[seed][key] == gradient[seed][key] for key in RECALLS) for seed in seeds)
    return "\n".join(
        [
            "# GOAL's validation: a loss and its gradient train the same model",
            "",
            "The paper's Table 2 trains the hardest-negative hinge once through its loss and once by injecting the",
            "gradient of its cell con/con. Here: Flickr8k, heads on frozen features (EfficientNet-Lite2, MiniLM),",
            "joint space {joint_dim}, {epochs} epochs, batches of {batch_size}, AdamW {learning_rate:g},".format(
                **first["settings"] | first["settings"]["model_settings"]
            ),
            f"{len(seeds)} seeds; test, weights chosen on validation; mean ± std (n-1) over seeds.",
            "",
            "```",
            "tercet features flickr8k flickr8k_features --image-encoder none --features global",
            "tercet train --data flickr8k_features --model-settings joint_dim=512 --seed S --objective con/con",
            "tercet train ... --objective examples/hinge_by_autograd.py:hinge",
            "```",
            "",
            f"| objective | {' | '.join(HEADINGS)} |",
            f"|---|{'---|' * len(HEADINGS)}",
            *rows,
            "",
            f"Seed by seed, loss / gradient. {same} of {len(seeds)} seeds end with the same recalls to the last digit;",
            f"in the others they differ by up to {largest:.2f} points. There float32 rounding, which differs from the",
            "first step on because autograd adds in another order, has turned a near tie of negatives, and the two",
            "runs part as two seeds would. In float64 the weights after 100 steps are equal to 1e-12",
            "(tests/training/test_step.py).",
            "",
            f"| seed | {' | '.join(HEADINGS)} |",
            f"|---|{'---|' * len(HEADINGS)}",
            *each,
            "",
            runs_note(lines, "goal"),
            "",
        ]
    )


def systems_rows(lines: list[dict]) -> list[str]:
    rows = [
        f"| system | recipe | {' | '.join(HEADINGS)} | minutes | run |",
        f"|---|---|{'---|' * len(HEADINGS)}---|---|",
    ]
    for line in lines:
        settings, metrics = line["settings"], line["metrics"]
        what = ", ".join(f"{key} {value}" for key, value in settings["model_settings"].items()) or "as it is"
        first = (
            f"{settings['first_objective']} for {settings['first_epochs']}, then "
            if settings["first_objective"]
            else ""
        )
        after = f"after {settings['start_from'].split('_')[-1]}, " if settings["start_from"] else ""
        recipe = (
            f"{what}; {after}{first}{settings['objective']}; {settings['epochs']} epochs, {settings['learning_rate']:g}"
        )
        numbers = " | ".join(f"{metrics[key]:.1f}" for key in RECALLS)
        rows.append(
            f"| {settings['model']} | {recipe} | {numbers} | {line['seconds'] / 60:.0f} | {line['id'].split('_')[-1]} |"
        )
    return rows


def systems_commands(lines: list[dict]) -> list[str]:
    return [
        "tercet train --data {data}{features} --model {model} --objective {objective} "
        "{widths}--epochs {epochs} "
        "--learning-rate {rate:g} --schedule {schedule}{decay} --warm-up-epochs {warm:g}{first}".format(
            data=line["settings"]["data"],
            features=f" --features {line['settings']['features']}" if line["settings"]["features"] else "",
            model=line["settings"]["model"],
            objective=line["settings"]["objective"],
            widths=_widths(line["settings"]["model_settings"]),
            epochs=line["settings"]["epochs"],
            rate=line["settings"]["learning_rate"],
            schedule=line["settings"]["schedule"],
            decay=" --decay-epochs" if line["settings"]["model"] not in ("heads", "xvlm-tiny") else "",
            warm=line["settings"]["warm_up_epochs"],
            first=f" --first-objective {line['settings']['first_objective']} --first-epochs "
            f"{line['settings']['first_epochs']}"
            if line["settings"]["first_objective"]
            else ""
            if not line["settings"]["start_from"]
            else f" --start-from runs/{line['settings']['start_from']}",
        )
        for line in lines
    ]


def _widths(settings: dict) -> str:
    return f"--model-settings {' '.join(f'{k}={v}' for k, v in settings.items())} " if settings else ""


def systems(lines: list[dict]) -> str:
    """Every system on Flickr8k, and X-VLM, which sees pixels, on scenes."""
    photos = [line for line in lines if not line["settings"]["data"].startswith("scenes")]
    drawn = [line for line in lines if line["settings"]["data"].startswith("scenes")]
    return "\n".join(
        [
            "# Every system on Flickr8k",
            "",
            "6,000 photos to train on, 1,000 to validate, 1,000 to test, five captions each; test, weights chosen on",
            "validation, one seed, one thread. VSE++ sees one vector a photo (EfficientNet-Lite2, 1280 wide), VSRN,",
            "VSE-infinity, SCAN and BFAN 36 cells of a grid (256 wide), heads that vector and MiniLM's of a caption.",
            "Widths are reduced as named: the numbers are not comparable to published ones, which stand on detector",
            "regions. Runs differ in objective, rate and epochs: this page shows that each system learns, not which is",
            "best. Minutes are those of a busy machine.",
            "",
            *systems_rows(photos),
            "",
            "```",
            *systems_commands(photos),
            "```",
            "",
            *drawn_section(drawn),
            runs_note(lines, "systems"),
            "",
        ]
    )


def drawn_section(lines: list[dict]) -> list[str]:
    if not lines:
        return []
    return [
        "## X-VLM on scenes",
        "",
        "Its tiny configuration, from random weights, on pixels: NT-Xent with the learned temperature (ITC), and two",
        "objectives in its place, each beside the matching loss; one seed, by the towers' cosine, not re-ranked.",
        "Chance is an rsum of 16: from random weights, at NT-Xent's rate and in so few steps, the objectives of the",
        "hardest negative learn next to nothing; at a lower rate and in twice the epochs both learn. As",
        "GOAL's authors do, they are also trained from weights that another objective trained before (after: the run",
        "whose weights come first); there they add nothing to what it learned. Where two rows name the same command,",
        "they are of different commits.",
        "",
        *systems_rows(lines),
        "",
        "```",
        *systems_commands(lines),
        "```",
        "",
    ]


def runs_note(lines: list[dict], name: str) -> str:
    commits = ", ".join(sorted({line["commit"] or "unknown" for line in lines}))
    return f"{len(lines)} runs, one line each in {name}.jsonl, of commit {commits}; this page is written by `make.py`."


def doctor_page(lines: list[dict]) -> str:
    return f"{doctor.page(lines)}{runs_note(lines, 'doctor')}\n"


def cocos_page(lines: list[dict]) -> str:
    return f"{cocos.page(lines)}\n{runs_note(lines, 'cocos')}\n"


def aoq_page(lines: list[dict]) -> str:
    return f"{aoq.page(lines)}\n{runs_note(lines, 'aoq')}\n"


PAGES = {
    "aoq": aoq_page,
    "cocos": cocos_page,
    "doctor": doctor_page,
    "flickr8k": flickr8k.page,
    "goal": goal,
    "systems": systems,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    collecting = commands.add_parser("collect")
    collecting.add_argument("page", choices=PAGES)
    collecting.add_argument("runs", nargs="+", type=Path)
    collecting.add_argument("--section", choices=flickr8k.SECTIONS)
    collecting.add_argument("--judgements", type=Path, help="for cocos: the folder of Flickr8k's human judgements")
    collecting.add_argument("--add", action="store_true", help="keep the runs that are on the page already")
    commands.add_parser("write")
    given = parser.parse_args()
    if given.command == "collect" and given.page == "flickr8k":
        made = [flickr8k_line_of(run, given.section) for run in given.runs if (run / "machine.json").is_file()]
        file = HERE / "flickr8k.jsonl"
        kept = [line for line in (read("flickr8k") if file.is_file() else []) if line["section"] != given.section]
        lines = sorted(kept + made, key=lambda line: (line["section"], line["id"]))
        file.write_text("".join(json.dumps(line, sort_keys=True) + "\n" for line in lines))
    elif given.command == "collect":
        made = [line_of(run) for run in given.runs]
        if given.page == "aoq":
            made = [aoq.line_of(line, run) for line, run in zip(made, given.runs, strict=True)]
        if given.page == "doctor":
            made = [doctor.line_of(line, run) for line, run in zip(made, given.runs, strict=True)]
        if given.page == "cocos":
            made = [cocos.line_of(line, run, given.judgements) for line, run in zip(made, given.runs, strict=True)]
        kept = (
            [line for line in read(given.page) if line["id"] not in {each["id"] for each in made}] if given.add else []
        )
        lines = sorted(kept + made, key=lambda line: (line["settings"]["model"], line["id"]))
        (HERE / f"{given.page}.jsonl").write_text("".join(json.dumps(line, sort_keys=True) + "\n" for line in lines))
    for name, page in PAGES.items():
        if (HERE / f"{name}.jsonl").is_file():
            (HERE / f"{name}.md").write_text(page(read(name)))


if __name__ == "__main__":
    main()
