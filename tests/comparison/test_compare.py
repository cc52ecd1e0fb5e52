"""`tercet.compare` end to end: training, tuning, tests, tables, report, and the report in a browser."""

import json
import os
import re
import shutil
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest
from PIL import Image
from rich.console import Console

import tercet
from tercet import runs
from tercet.comparison.compare import _execute
from tercet.comparison.executors.local import LocalExecutor, _train
from tercet.comparison.live_table import LiveTable, TrialsTable
from tercet.comparison.plan import PlannedRun, Variant
from tercet.comparison.results import Results
from tercet.comparison.settings import CompareSettings
from tercet.console import RunProgress
from tercet.training.mine_run import mine_table
from tercet.training.prepare import prepare_data, run_id_of
from tercet.training.settings import MineSettings, train_settings
from tests.commands import tercet as command

SMALL = {"data": "scenes:300", "epochs": 2, "seeds": 2, "no_tune": True}


@pytest.fixture(scope="module")
def comparison(tmp_path_factory):
    root = tmp_path_factory.mktemp("compare") / "runs"
    result = tercet.compare(objectives=("nt-xent", "smooth-ap", "triplet"), runs=root, **SMALL)
    result.save()
    return result


def test_every_format_is_written_with_the_same_numbers(comparison):
    files = {file.name for file in comparison.folder.iterdir()}
    assert files == {"tables.md", "tables.tex", "runs.csv", "comparison.json", "report.html", "figures"}
    document = json.loads((comparison.folder / "comparison.json").read_text())
    mean = sum(run["metrics"]["rsum"] for run in document["results"]["nt-xent"]) / 2
    for name in ("tables.md", "tables.tex", "report.html"):
        assert f"{mean:.1f}" in (comparison.folder / name).read_text()
    assert document["verdict"] in (comparison.folder / "tables.md").read_text()
    pairs_seen = {name: {run["pairs_seen"] for run in runs} for name, runs in document["results"].items()}
    assert {run["steps"] for runs in document["results"].values() for run in runs} == {22}
    assert pairs_seen["nt-xent"] == {22 * 128}
    assert pairs_seen["smooth-ap"] == {22 * 128 * 5}


def test_figures_come_as_png_and_svg(comparison):
    names = {"recalls", "moves", "learning", "contributing", "similarities", "cross", "costs"}
    assert {file.stem for file in (comparison.folder / "figures").glob("*.png")} == names
    assert {file.stem for file in (comparison.folder / "figures").glob("*.svg")} == names


@pytest.mark.slow
def test_the_same_bytes_twice(comparison):
    before = {file: file.read_bytes() for file in comparison.folder.rglob("*") if file.is_file()}
    again = tercet.compare(objectives=("nt-xent", "smooth-ap", "triplet"), runs=comparison.settings.runs, **SMALL)
    assert again.folder == comparison.folder
    again.save()
    for file, content in before.items():
        assert file.read_bytes() == content, file.name


def test_the_report_needs_no_network(comparison):
    page = (comparison.folder / "report.html").read_text()
    links = [link for link in re.findall(r'(?:src|href)="([^"]*)"', page) if not link.startswith(("#", "data:"))]
    assert all(re.fullmatch(r"figures/\w+\.(png|svg)", link) for link in links)
    assert "<script" not in page
    assert "url(http" not in page
    assert page.count("data:image/jpeg") > 20


@pytest.mark.slow
def test_names_may_contain_any_character_and_an_edited_objective_is_detected(tmp_path):
    odd = tmp_path / "_we$ir_{d$ <b>[red] & x.py"
    odd.write_text("def own(S, positives):\n    return -positives.to(S.dtype)\n")
    result = tercet.compare(objectives=("nt-xent", f"{odd}:own"), runs=tmp_path / "runs", **SMALL | {"seeds": 1})
    page = result.save().read_text()
    assert "<b>[red]" not in page
    assert "_we$ir_{d$ &lt;b&gt;[red] &amp; x.py:own" in page
    folder = next(iter(result.results.runs["nt-xent"].values())).folder
    live = LiveTable(Console(stderr=True), Results((), {}), 1, metric="rsum", title="runs")
    plan = PlannedRun(result.results.variants[0], train_settings({"seed": 0}))
    live.run_ids[plan.label] = "another"
    live.finished(plan, folder)
    assert "changed during the run" in live.failures[0].why


def test_data_that_cannot_be_compared_is_rejected_before_training(tmp_path):
    lines = ["filepath,title,split", *(f"{n}.jpg,text {n},train" for n in range(8))]
    (tmp_path / "none.csv").write_text("\n".join(lines) + "\n")
    (tmp_path / "one.csv").write_text("\n".join([*lines, "8.jpg,text 8,test"]) + "\n")
    for image in range(9):
        noise = np.random.default_rng(image).integers(0, 256, (32, 32, 3), dtype=np.uint8)
        Image.fromarray(noise).save(tmp_path / f"{image}.jpg")
    settings = {"image_encoder": "efficientnet-lite2", "text_encoder": "bag-of-words", "runs": tmp_path / "runs"}
    for name, message, more in (
        ("none.csv", "neither a test nor a validation split", {}),
        ("one.csv", "significance tests need at least 2 held-out images, got 1", {}),
    ):
        with pytest.raises(ValueError, match=message):
            tercet.compare(data=str(tmp_path / name), objectives="nt-xent", **settings, **more)
    assert not list((tmp_path / "runs").glob("2*"))


def test_a_mined_table_of_other_data_is_rejected_before_training(tmp_path):
    run = tercet.train(data="scenes:70", epochs=1, batch_size=50, runs=tmp_path / "first").folder
    mine_table(MineSettings(run, "scenes:70", tmp_path / "table", top_captions=9, top_images=4))
    arguments = ("compare", "scenes:60", "--grid", "aoq", "--mined", tmp_path / "table", "--seeds", "1")
    done = command(*arguments, "--epochs", "1", cwd=tmp_path)
    assert done.returncode == 2
    (line,) = done.stderr.splitlines()
    assert "was mined from another dataset than scenes" in line
    assert not list((tmp_path / "runs").glob("2*"))


def test_a_rejected_run_gives_the_reason(tmp_path):
    result = tercet.compare(
        data="scenes:60",
        objectives=("triplet",),
        train={"grad_accum_steps": 4000},
        seeds=2,
        no_tune=True,
        runs=tmp_path / "runs",
    )
    assert [failure.why for failure in result.results.failures] == [
        "300 pairs do not fill --grad-accum-steps 4000 batches"
    ] * 2


def test_every_objective_is_tuned_with_the_same_budget_and_never_on_test(tmp_path, capsys):
    settings = {"data": "scenes:60", "epochs": 3, "seeds": 1, "train": {"batch_size": 50}, "runs": tmp_path / "runs"}
    result = tercet.compare(objectives=("nt-xent", "triplet"), tune_factors=(0.001, 0.03), **settings)
    for (search,) in result.tuned.values():
        assert search.setting == "learning_rate"
        assert len(search.screening) == 2 + 2
        assert len(search.final) == 2
        assert max(search.screening) > 3e-5  # the upper end of the starting rates won: higher ones were tried
        assert search.chosen in search.final
        assert set(search.final) <= set(search.screening)
    assert {run.learning_rate for name in result.tuned for run in result.results.runs[name].values()} == {
        search.chosen for (search,) in result.tuned.values()
    }
    assert set(result.results.runs["triplet"]) == {0}
    assert "the same budget of 6 short runs each, with seeds that are not reported" in result.verdict
    trials = [folder for folder in (tmp_path / "runs").glob("2*") if "_s100000" in folder.name]
    assert len(trials) == 2 * 6
    for folder in trials:
        assert '"test"' not in (folder / "metrics.jsonl").read_text()
    shown = [line for line in capsys.readouterr().err.splitlines() if line.startswith("tuning")]
    assert len(shown) == len(trials)
    assert all("validation rsum" in line for line in shown)
    again = tercet.compare(objectives=("nt-xent", "triplet"), tune_factors=(0.001, 0.03), **settings)
    assert again.tuned == result.tuned
    assert len(list((tmp_path / "runs").glob("2*"))) == len(trials) + 2  # nothing was trained again


TINY = {
    "data": "scenes:60",
    "epochs": 1,
    "train": {"batch_size": 50},
    "model_settings": {"embed_dim": 8},
    "no_tune": True,
}


def test_a_script_without_a_guard_is_not_run_again(tmp_path):
    """Processes with several threads are spawned, which by itself imports the main module."""
    (tmp_path / "script.py").write_text(
        "import os, tercet\n"
        "print('script')\n"
        "tercet.compare('scenes:60', objectives=['nt-xent', 'triplet'], epochs=1, no_tune=True, seeds=1, processes=1)\n"
    )
    environment = {name: value for name, value in os.environ.items() if name != "OMP_NUM_THREADS"}
    done = subprocess.run(
        [sys.executable, "script.py"], cwd=tmp_path, env=environment, capture_output=True, text=True, check=True
    )
    assert done.stdout.count("script") == 1
    assert "failed" not in done.stderr


def trial_of(folder):
    settings = {"data": "scenes:60", "objective": "nt-xent", "epochs": 1, "batch_size": 50, "runs": folder}
    settings |= {"model_settings": {"embed_dim": 8}}
    return PlannedRun(Variant("nt-xent", "nt-xent"), train_settings(settings))


def test_a_trial_in_a_process_that_opens_the_data_itself_is_not_evaluated_on_test(tmp_path):
    """A spawned process, which has several threads, shares no data with its parent."""
    plan, ended = trial_of(tmp_path), []
    _train([plan], None, [RunProgress()], lambda number, result: ended.append(result.folder), tested=False)
    (folder,) = ended
    assert '"test"' not in (folder / "metrics.jsonl").read_text()
    validation_only = replace(prepare_data(plan.settings), test=None)
    assert runs.find_run(tmp_path, run_id_of(plan.settings, validation_only)) == folder  # it is found again


@pytest.mark.slow
def test_a_single_trial_that_is_left_resumes_in_a_process_of_its_own(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0, 1}, raising=False)
    plan = trial_of(tmp_path)
    datasets = {"heads": replace(prepare_data(plan.settings), test=None)}
    live = TrialsTable(Console(stderr=True), 1)
    _execute([plan], CompareSettings(), datasets, LocalExecutor(datasets), live)
    (folder,) = live.folders.values()
    assert '"test"' not in (folder / "metrics.jsonl").read_text()
    assert runs.read_machine(folder)["threads"] == 2
    assert runs.find_run(tmp_path, run_id_of(plan.settings, datasets["heads"])) == folder


def test_more_seeds_until_it_is_decided(tmp_path, monkeypatch):
    monkeypatch.setattr("tercet.comparison.settings.LOOKS", (3,))
    broken = tmp_path / "broken.py"
    broken.write_text(
        "def fail(S, positives):\n"
        "    if len(S) > 10:\n"
        "        raise ValueError('no gradient')\n"
        "    return -positives.to(S.dtype)\n"
    )
    settings = {"objectives": ("nt-xent", "triplet", f"{broken}:fail"), "seeds": 2, "runs": tmp_path / "runs"}
    result = tercet.compare(until_decided=True, **settings, **TINY)
    assert not result.significance.decided
    assert set(result.significance.seeds.values()) == {3}
    assert result.significance.share == 0.5
    assert "Seeds until decided: not decided at 3 seeds, after 6 runs and" in result.verdict
    assert "tests were planned at 2 and 3 seeds, each with 1/2 of the error rate of 0.05" in result.verdict
    names = [failure.name for failure in result.results.failures]
    assert len(names) == len(set(names)) == 3  # what failed was not tried again
    at_once = tercet.compare(
        until_decided=True, rope=601.0, **settings | {"objectives": ("nt-xent", "triplet")}, **TINY
    )
    assert "decided at 2 seeds, after 4 runs" in at_once.verdict
    assert all(pair.equivalent for pair in at_once.significance.pairs)
    assert at_once.folder != result.folder


def test_a_baseline_is_checked_before_training(tmp_path, comparison):
    with pytest.raises(
        ValueError, match=r"--baseline 'triplets' is no row \(did you mean triplet\?\); rows: nt-xent, triplet"
    ):
        tercet.compare(objectives=("nt-xent", "triplet"), baseline="triplets", runs=tmp_path / "runs", **SMALL)
    for settings, message in (
        ({"rope": 0.0}, "--rope"),
        ({"until_decided": True, "seeds": 1}, "--until-decided needs"),
        ({"until_decided": True, "seeds": 12}, "--until-decided trains up to 10 seeds; --seeds must be below, got 12"),
        ({"no_tune": True, "tune": "full"}, "--no-tune and --tune full contradict each other"),
    ):
        with pytest.raises(ValueError, match=message):
            tercet.compare(runs=tmp_path / "runs", **SMALL | settings)
    assert not (tmp_path / "runs").exists()
    names, root = ("nt-xent", "smooth-ap", "triplet"), comparison.settings.runs
    against = tercet.compare(objectives=names, baseline="triplet", runs=root, **SMALL)
    assert all("triplet" in (pair.first, pair.second) for pair in against.significance.pairs)
    assert len(against.significance.pairs) == 2
    assert against.folder != comparison.folder


def test_rows_whose_curves_still_rise_carry_no_claim(comparison):
    """Two epochs are far too few."""
    assert {caution.kind for caution in comparison.cautions} == {"rising"}
    assert comparison.without_claim == ["nt-xent", "smooth-ap", "triplet"]
    assert comparison.verdict.startswith("No claim: no objective was trained to its end.")
    assert "--epochs 4" in comparison.next_step()[1]
    page = (comparison.folder / "report.html").read_text()
    assert "validation was still rising when training ended" in page
    assert comparison.methods.split(".")[0] in page
    assert "tie" not in comparison.tables()[0].headings


def test_the_title_is_the_name_that_the_user_gave(comparison):
    assert comparison.title == "scenes:300, heads"


def test_protocols_get_a_table_each_and_are_checked_before_training(tmp_path, comparison):
    with pytest.raises(ValueError, match="1,000 images"):
        tercet.compare(objectives="nt-xent", protocols="flickr-1k", runs=tmp_path / "runs", **SMALL)
    assert not list((tmp_path / "runs").glob("2*"))
    again = tercet.compare(objectives=("nt-xent",), protocols="custom", runs=comparison.settings.runs, **SMALL)
    default, custom = again.tables()[:2]
    assert custom.title.startswith("custom, ")
    assert custom.rows == [row for row in default.rows if row[0] != "cca"]


def test_a_csv_of_images_in_one_call(tmp_path):
    """Features are extracted once; the report contains the images."""
    from tercet.data.scenes import scenes

    lines = ["filepath,title,split"]
    for split, count in (("train", 30), ("val", 6), ("test", 6)):
        generated = scenes(split, count).as_split()
        for image, name in enumerate(generated.image_names):
            generated.image_files.open(image).save(tmp_path / name)
            lines += [f'{name},"{generated.texts[5 * image + k]}",{split}' for k in range(3)]
    (tmp_path / "photos.csv").write_text("\n".join(lines) + "\n")
    settings = {
        "data": str(tmp_path / "photos.csv"),
        "seeds": 1,
        "epochs": 1,
        "train": {"batch_size": 30},
        "no_tune": True,
    }
    settings |= {"image_encoder": "efficientnet-lite2", "text_encoder": "bag-of-words", "runs": tmp_path / "runs"}
    result = tercet.compare(objectives=("nt-xent", "triplet"), **settings)
    assert result.save().read_text().count("data:image/jpeg") > 5
    assert result.title == "photos.csv, heads"
    assert "We trained heads on photos.csv with 2 objectives" in result.methods
    (features,) = (tmp_path / "runs" / "features").iterdir()
    stamp = (features / "train_ims.npy").stat().st_mtime_ns
    tercet.compare(objectives=("nt-xent",), **settings)
    assert (features / "train_ims.npy").stat().st_mtime_ns == stamp


ARGUMENTS = ("--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-sync", "--no-first-run")

# The lowest contrast of a text with its background (WCAG), and where it is.
CONTRAST = """() => {
  const parse = c => c.match(/[\\d.]+/g).map(Number);
  const linear = v => v <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4;
  const light = c => { const [r, g, b] = parse(c).map(v => linear(v / 255));
    return 0.2126 * r + 0.7152 * g + 0.0722 * b; };
  const behind = e => { for (; e; e = e.parentElement) { const c = getComputedStyle(e).backgroundColor;
    if (parse(c).length < 4 || parse(c)[3] > 0) return c; } return 'rgb(255, 255, 255)'; };
  let least = [99, ''];
  const walk = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (walk.nextNode()) {
    const e = walk.currentNode.parentElement;
    if (!walk.currentNode.data.trim() || e.closest('.skip, style')) continue;
    const style = getComputedStyle(e);
    const ink = e.closest('svg') ? style.fill : style.color;
    const [a, b] = [light(ink), light(behind(e))];
    const ratio = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
    if (ratio < least[0]) least = [ratio, e.tagName + ': ' + walk.currentNode.data.trim().slice(0, 40)];
  }
  return least; }"""


@pytest.mark.parametrize(
    ("width", "scheme"),
    [
        (390, "dark"),
        *(pytest.param(*given, marks=pytest.mark.slow) for given in ((390, "light"), (1280, "light"), (1280, "dark"))),
    ],
)
def test_the_report_in_a_browser(comparison, width, scheme):
    browser_file = shutil.which("chromium") or shutil.which("google-chrome")
    if browser_file is None:
        pytest.skip("no browser on this machine: apt-get install chromium")
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=browser_file, args=list(ARGUMENTS))
        page = browser.new_context(viewport={"width": width, "height": 800}, color_scheme=scheme).new_page()
        messages, requests = [], []
        page.on("console", lambda message: messages.append(message.text))
        page.on("pageerror", lambda error: messages.append(str(error)))
        page.on("request", lambda request: requests.append(request.url))
        page.goto((comparison.folder / "report.html").resolve().as_uri())
        assert messages == []
        assert [url for url in requests if not url.startswith(("file:", "data:"))] == []
        assert page.evaluate("document.documentElement.scrollWidth") <= width  # nothing overflows
        assert page.evaluate(CONTRAST)[0] >= 4.5, page.evaluate(CONTRAST)
        assert page.evaluate("[...document.images].every(i => i.alt && i.naturalWidth > 0)")
        assert page.evaluate("[...document.querySelectorAll('svg')].every(s => s.getAttribute('aria-label'))")
        ids = page.evaluate("[...document.querySelectorAll('[id]')].map(e => e.id)")
        assert len(ids) == len(set(ids))
        page.keyboard.press("Tab")
        assert page.evaluate("document.activeElement.className") == "skip"
        for _ in range(12):  # links, then the table, which arrows scroll
            page.keyboard.press("Tab")
            if page.evaluate("document.activeElement.className") == "wide":
                break
        assert page.evaluate("document.activeElement.className") == "wide"
        browser.close()
