"""Result pages: one JSON line per run is collected from run folders, and pages are generated from these lines only.

python docs/results/make.py collect goal runs/*_f8k_*     # run folders -> goal.jsonl
python docs/results/make.py collect flickr8k --section heads runs/*_f8k_*    # replace one section of that page
python docs/results/make.py collect cocos --judgments judgments runs/*_f8k_*   # with human judgments
python docs/results/hosts.py HOST ...                     # what other trainers do to a gradient -> hosts.jsonl
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

import aoq  # noqa: E402 - in the same folder
import cocos  # noqa: E402
import doctor  # noqa: E402
import flickr8k  # noqa: E402
import hosts  # noqa: E402
import waist  # noqa: E402

RECALLS = ("i2t_r1", "i2t_r5", "i2t_r10", "t2i_r1", "t2i_r5", "t2i_r10", "rsum")
HEADINGS = ("i2t R@1", "R@5", "R@10", "t2i R@1", "R@5", "R@10", "rsum")


def line_of(run: Path) -> dict:
    """What is needed to repeat the run, and its metrics; without host names and paths."""
    settings = json.loads((run / "settings.json").read_text())
    machine = json.loads((run / "machine.json").read_text())
    final = json.loads((run / "metrics.jsonl").read_text().splitlines()[-1])
    settings["data"] = Path(settings["data"]).name
    settings["init_from"] = None if settings["init_from"] is None else Path(settings["init_from"]).name
    settings["mined"] = None if settings.get("mined") is None else Path(settings["mined"]).name
    objective = settings["objective"]
    for name in ("objective", "warmup_objective"):
        settings[name] = without_path(settings[name])
    return {
        "id": run.name.replace(in_folder_name(objective), in_folder_name(settings["objective"])),
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
    """A custom objective, FILE.py:NAME, without its folder."""
    return Path(objective).name if objective is not None and ".py:" in objective else objective


def in_folder_name(objective: str) -> str:
    """The objective as `tercet.runs.open_run` writes it into the name of a run folder."""
    return re.sub(r"[^\w.+-]+", "_", objective.replace("/", "+"))[:60]


def flickr8k_line_of(run: Path, section: str) -> dict:
    """With per-image hits for the tests; settings with default values are left out."""
    import numpy as np

    from tercet.training.settings import identity_of, train_settings

    line = line_of(run)
    defaults = identity_of(train_settings({"model": line["settings"]["model"]}))
    line["settings"] = {
        name: value for name, value in line["settings"].items() if name not in defaults or value != defaults[name]
    } | {name: line["settings"][name] for name in ("data", "model", "objective", "seed", "epochs")}
    counts = [
        json.loads(text)["cocos"] for text in (run / "metrics.jsonl").read_text().splitlines() if '"cocos"' in text
    ]
    negatives = [mean(count[direction]["negatives"] for direction in ("i2t", "t2i")) for count in counts]
    line["contributing_negatives"] = round(mean(negatives), 4)
    line["metrics"] = {name: round(v, 6) if isinstance(v, float) else v for name, v in line["metrics"].items()}
    with np.load(run / "ranks.npz") as ranks:
        line["per_image"] = flickr8k.packed(dict(ranks))
    return line | {"section": section}


def read(name: str) -> list[dict]:
    return [json.loads(line) for line in (HERE / f"{name}.jsonl").read_text().splitlines()]


def cell(values: list[float]) -> str:
    return f"{mean(values):.2f} ± {stdev(values):.2f}" if len(values) > 1 else f"{values[0]:.1f}"


def goal(lines: list[dict]) -> str:
    """GOAL's Table 2: the same runs by autograd of the loss and by the injected pair gradient."""
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
        f"| {label} | " + " | ".join(cell([by_objective[name][seed][key] for seed in seeds]) for key in RECALLS) + " |"
        for name, label in names.items()
    ]
    loss, gradient = by_objective["hinge_by_autograd.py:hinge"], by_objective["con/con"]
    per_seed = [
        f"| {seed} | " + " | ".join(f"{loss[seed][key]:.2f} / {gradient[seed][key]:.2f}" for key in RECALLS) + " |"
        for seed in seeds
    ]
    largest = max(abs(loss[seed][key] - gradient[seed][key]) for seed in seeds for key in RECALLS[:-1])
    same = sum(all(loss[seed][key] == gradient[seed][key] for key in RECALLS) for seed in seeds)
    return "\n".join(
        [
            "# GOAL's validation: a loss and its gradient train the same model",
            "",
            "The paper's Table 2 trains the hardest-negative hinge once with its loss and once with the injected",
            "gradient of its cell con/con. Here: Flickr8k, heads on frozen features (EfficientNet-Lite2, MiniLM),",
            "embed_dim {embed_dim}, {epochs} epochs, batch size {batch_size}, AdamW (lr {learning_rate:g}),".format(
                **first["settings"] | first["settings"]["model_settings"]
            ),
            f"{len(seeds)} seeds. Test split, checkpoint selected on validation; mean ± std (n-1) over seeds.",
            "",
            "```",
            "tercet features flickr8k flickr8k_features --image-encoder none --features global",
            "tercet train flickr8k_features --model-settings embed_dim=512 --seed S --objective con/con",
            "tercet train ... --objective examples/hinge_by_autograd.py:hinge",
            "```",
            "",
            f"| objective | {' | '.join(HEADINGS)} |",
            f"|---|{'---|' * len(HEADINGS)}",
            *rows,
            "",
            f"Per seed, loss / gradient. {same} of {len(seeds)} seeds end with exactly the same recalls; the others",
            f"differ by up to {largest:.2f} points. There float32 rounding, which differs from the first step because",
            "autograd sums in another order, flipped a near tie between negatives, after which the two runs diverge",
            "like two seeds. In float64 the weights after 100 steps agree to 1e-12 (tests/training/test_step.py).",
            "",
            f"| seed | {' | '.join(HEADINGS)} |",
            f"|---|{'---|' * len(HEADINGS)}",
            *per_seed,
            "",
            runs_note(lines, "goal"),
            "",
        ]
    )


def systems_rows(lines: list[dict]) -> list[str]:
    rows = [
        f"| model | recipe | {' | '.join(HEADINGS)} | minutes | run |",
        f"|---|---|{'---|' * len(HEADINGS)}---|---|",
    ]
    for line in lines:
        settings, metrics = line["settings"], line["metrics"]
        model = ", ".join(f"{key} {value}" for key, value in settings["model_settings"].items()) or "default settings"
        warmup = (
            f"{settings['warmup_objective']} for {settings['warmup_objective_epochs']} epochs, then "
            if settings["warmup_objective"]
            else ""
        )
        init = f"from {settings['init_from'].split('_')[-1]}, " if settings["init_from"] else ""
        objective, rate = f"{init}{warmup}{settings['objective']}", f"lr {settings['learning_rate']:g}"
        recipe = f"{model}; {objective}; {settings['epochs']} epochs, {rate}"
        cells = " | ".join(f"{metrics[key]:.1f}" for key in RECALLS)
        rows.append(
            f"| {settings['model']} | {recipe} | {cells} | {line['seconds'] / 60:.0f} | {line['id'].split('_')[-1]} |"
        )
    return rows


def systems_commands(lines: list[dict]) -> list[str]:
    return [
        "tercet train {data}{features} --model {model} --objective {objective} "
        "{widths}--epochs {epochs} "
        "--learning-rate {rate:g} --schedule {schedule}{decay} --warmup-epochs {warm:g}{first}".format(
            data=line["settings"]["data"],
            features=f" --features {line['settings']['features']}" if line["settings"]["features"] else "",
            model=line["settings"]["model"],
            objective=line["settings"]["objective"],
            widths=_widths(line["settings"]["model_settings"]),
            epochs=line["settings"]["epochs"],
            rate=line["settings"]["learning_rate"],
            schedule=line["settings"]["schedule"],
            decay=" --decay-epochs" if line["settings"]["model"] not in ("heads", "xvlm-tiny") else "",
            warm=line["settings"]["warmup_epochs"],
            first=f" --warmup-objective {line['settings']['warmup_objective']} --warmup-objective-epochs "
            f"{line['settings']['warmup_objective_epochs']}"
            if line["settings"]["warmup_objective"]
            else ""
            if not line["settings"]["init_from"]
            else f" --init-from runs/{line['settings']['init_from']}",
        )
        for line in lines
    ]


def _widths(settings: dict) -> str:
    return f"--model-settings {' '.join(f'{k}={v}' for k, v in settings.items())} " if settings else ""


def systems(lines: list[dict]) -> str:
    """Every model on Flickr8k, and X-VLM, which takes pixels, on scenes."""
    flickr8k_lines = [line for line in lines if not line["settings"]["data"].startswith("scenes")]
    scenes_lines = [line for line in lines if line["settings"]["data"].startswith("scenes")]
    return "\n".join(
        [
            "# Every model on Flickr8k",
            "",
            "6,000 training, 1,000 validation and 1,000 test images, five captions per image. Test split, checkpoint",
            "selected on validation, one seed, one thread. VSE++ takes one feature vector per image",
            "(EfficientNet-Lite2, 1280-d); VSRN, VSE-infinity, SCAN and BFAN take 36 grid cells (256-d); heads takes",
            "the same vector as VSE++ and MiniLM's caption embedding. Embedding sizes are reduced as listed, so the",
            "numbers are not comparable to published ones, which use detector regions. Runs differ in objective,",
            "learning rate and epochs: this page shows that each model trains, not which is best. Minutes were",
            "measured on a machine with other load.",
            "",
            *systems_rows(flickr8k_lines),
            "",
            "```",
            *systems_commands(flickr8k_lines),
            "```",
            "",
            *scenes_section(scenes_lines),
            runs_note(lines, "systems"),
            "",
        ]
    )


def scenes_section(lines: list[dict]) -> list[str]:
    if not lines:
        return []
    return [
        "## X-VLM on scenes",
        "",
        "The tiny configuration, from random weights, on pixels: NT-Xent with learned temperature (ITC) and two other",
        "objectives in its place, each together with the image-text matching loss (ITM). One seed, ranked by the",
        "cosine of the two encoders, not re-ranked. Chance level is an rsum of 16: from random weights, at the",
        "learning rate of NT-Xent and in this few steps, the hardest-negative objectives learn almost nothing; at a",
        "lower learning rate and with twice the epochs both learn. As in GOAL, they are also fine-tuned from the",
        "weights of another objective (from: the run of these weights); there they do not improve on it. Two rows",
        "with the same command are from different commits.",
        "",
        *systems_rows(lines),
        "",
        "```",
        *systems_commands(lines),
        "```",
        "",
    ]


def runs_note(lines: list[dict], name: str) -> str:
    names = sorted({line["commit"] or "unknown" for line in lines})
    commits = f"commit{'s' if len(names) > 1 else ''} {', '.join(names)}"
    return f"{len(lines)} runs, one line each in {name}.jsonl; {commits}. Generated by `make.py`."


def doctor_page(lines: list[dict]) -> str:
    return f"{doctor.page(lines)}{runs_note(lines, 'doctor')}\n"


def cocos_page(lines: list[dict]) -> str:
    return f"{cocos.page(lines)}\n{runs_note(lines, 'cocos')}\n"


def aoq_page(lines: list[dict]) -> str:
    return f"{aoq.page(lines)}\n{runs_note(lines, 'aoq')}\n"


def waist_page(lines: list[dict]) -> str:
    return f"{waist.page(lines)}\n{runs_note(lines, 'waist')}\n"


PAGES = {
    "aoq": aoq_page,
    "cocos": cocos_page,
    "doctor": doctor_page,
    "flickr8k": flickr8k.page,
    "goal": goal,
    "hosts": hosts.page,
    "systems": systems,
    "waist": waist_page,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    collect = commands.add_parser("collect")
    collect.add_argument("page", choices=[name for name in PAGES if name != "hosts"])
    collect.add_argument("runs", nargs="+", type=Path)
    collect.add_argument("--section", choices=flickr8k.SECTIONS)
    collect.add_argument("--judgments", type=Path, help="for cocos: folder of the human judgments of Flickr8k")
    collect.add_argument("--add", action="store_true", help="keep the runs that are already on the page")
    commands.add_parser("write")
    arguments = parser.parse_args()
    if arguments.command == "collect" and arguments.page == "flickr8k":
        finished = [run for run in arguments.runs if (run / "machine.json").is_file()]
        collected = [flickr8k_line_of(run, arguments.section) for run in finished]
        file = HERE / "flickr8k.jsonl"
        old = read("flickr8k") if file.is_file() else []
        other_sections = [line for line in old if line["section"] != arguments.section]
        lines = sorted(other_sections + collected, key=lambda line: (line["section"], line["id"]))
        file.write_text("".join(json.dumps(line, sort_keys=True) + "\n" for line in lines))
    elif arguments.command == "collect":
        collected = [line_of(run) for run in arguments.runs]
        if arguments.page == "aoq":
            collected = [aoq.line_of(line, run) for line, run in zip(collected, arguments.runs, strict=True)]
        if arguments.page == "waist":
            collected = [waist.line_of(line, run) for line, run in zip(collected, arguments.runs, strict=True)]
        if arguments.page == "doctor":
            collected = [doctor.line_of(line, run) for line, run in zip(collected, arguments.runs, strict=True)]
        if arguments.page == "cocos":
            collected = [
                cocos.line_of(line, run, arguments.judgments)
                for line, run in zip(collected, arguments.runs, strict=True)
            ]
        ids = {line["id"] for line in collected}
        old = [line for line in read(arguments.page) if line["id"] not in ids] if arguments.add else []
        lines = sorted(old + collected, key=lambda line: (line["settings"]["model"], line["id"]))
        text = "".join(json.dumps(line, sort_keys=True) + "\n" for line in lines)
        (HERE / f"{arguments.page}.jsonl").write_text(text)
    for name, page in PAGES.items():
        if (HERE / f"{name}.jsonl").is_file():
            (HERE / f"{name}.md").write_text(page(read(name)))


if __name__ == "__main__":
    main()
