"""The page of the doctor: what it measures on healthy runs and on runs that were made ill."""

from pathlib import Path

FIRST = (0, 1, 2)
KEPT = ("data", "model", "objective", "seed", "epochs", "learning_rate", "model_settings", "objective_settings")


def line_of(line: dict, run: Path) -> dict:
    """What every page keeps of a run, what is wrong with it (the folder it lies in), and what the doctor said."""
    from tercet.dissection.doctor_page import report_on
    from tercet.dissection.opened import open_run_folder

    report = report_on(open_run_folder(run)).as_json()
    return line | {
        "settings": {name: line["settings"][name] for name in KEPT},
        "made": run.parent.name,
        "metrics": {"rsum": round(line["metrics"]["rsum"], 1)},
        "values": {each["name"]: _rounded(each["value"]) for each in report["looked_at"]},
        "findings": [finding["name"] for finding in report["findings"]],
    }


def _rounded(value: float | None) -> float | None:
    return None if value is None else float(f"{value:.4g}")


def page(lines: list[dict]) -> str:
    from tercet.analysis.doctor import ILLNESSES

    ordered = sorted(lines, key=lambda line: (line["settings"]["model"], line["settings"]["objective"], line["seed"]))
    names = [illness.name for illness in ILLNESSES]
    of = {name: [line for line in ordered if line["made"] == name] for name in ("healthy", *names)}
    first, later = ([line for line in lines if (line["seed"] in FIRST) is wanted] for wanted in (True, False))
    systems = sorted({line["settings"]["model"] for line in of["healthy"]})
    rows = [
        f"| {illness.name} | {illness.limit} | {_range(of['healthy'], illness.name)} | "
        f"{_range(of[illness.name], illness.name)} | "
        f"{' | '.join(_found([line for line in of[illness.name] if line in part]) for part in (first, later))} |"
        for illness in ILLNESSES
    ]
    return "\n".join(
        [
            "# The doctor on healthy and on ill runs",
            "",
            f"Small runs on generated scenes. Each of {len(names)} illnesses was given to runs by an objective with a",
            f"slip in it, by settings or by the data; others, of {', '.join(systems)}, were trained sensibly.",
            "",
            f"- Seeds 0 to 2, with which in view the thresholds were chosen: {_summary(first)}.",
            f"- The same with seeds 3 to 5, made when they stood: {_summary(later)}.",
            "",
            "Other ways to make a run ill, and milder ones, are not on this page.",
            "tests/dissection/illnesses.py says how each run was made; docs/doctor.md what is measured, and why.",
            "",
            "```",
            "python -m tests.dissection.illnesses FOLDER",
            "python docs/results/make.py collect doctor FOLDER/*/*_s[0-9]*_*",
            "```",
            "",
            "| illness | ill | healthy runs | runs that were made ill | found, seeds 0 to 2 | found, seeds 3 to 5 |",
            "|---|---|---|---|---|---|",
            *rows,
            "",
            "Every value of every run. Bold: found. What is beyond its threshold and not bold follows from a finding.",
            "",
            f"| made | system, objective, seed | rsum | {' | '.join(names)} |",
            f"|---|---|{'---:|' * (len(names) + 1)}",
            *(_row(line, names) for part in of.values() for line in part),
            "",
        ]
    )


def _summary(lines: list[dict]) -> str:
    ill, healthy = ([line for line in lines if (line["made"] != "healthy") is wanted] for wanted in (True, False))
    return (
        f"the illness was found in {_found(ill)}, and nothing in "
        f"{sum(not line['findings'] for line in healthy)} of {len(healthy)} healthy ones"
    )


def _found(lines: list[dict]) -> str:
    return f"{sum(line['made'] in line['findings'] for line in lines)} of {len(lines)}"


def _range(lines: list[dict], name: str) -> str:
    values = [line["values"][name] for line in lines if line["values"][name] is not None]
    return f"{min(values):.3g} to {max(values):.3g}"


def _shown(line: dict, name: str) -> str:
    value = line["values"][name]
    return "-" if value is None else f"{value:.3g}"


def _row(line: dict, names: list[str]) -> str:
    settings = line["settings"]
    what = f"{settings['model']}, {settings['objective'].split(':')[-1]}, {settings['seed']}"
    values = [f"**{_shown(line, name)}**" if name in line["findings"] else _shown(line, name) for name in names]
    return f"| {line['made']} | {what} | {line['metrics']['rsum']:.0f} | {' | '.join(values)} |"
