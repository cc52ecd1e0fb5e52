"""HTML pages: every text on them is escaped, wherever it comes from, and all markup is in the templates."""

import json
import re
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import pytest
import torch
from jinja2 import UndefinedError
from rich.console import Console

import tercet
from tercet import runs
from tercet.analysis.reports.analyse import analyse
from tercet.analysis.reports.doctor_report import run_doctor
from tercet.analysis.reports.settings import AnalyseSettings, DoctorSettings
from tercet.comparison.report.report_page import example, page_example
from tercet.comparison.results import Failure
from tercet.data.scenes import scenes
from tercet.models import build
from tercet.reporting.output_formats import Cell, Table, environment, query_item, render_page
from tercet.storage import sha256_of, write_manifest
from tercet.training.eval_loop import EmbeddedSplit
from tests.analysis.reports.hostile_names import write_hostile_data
from tests.browser import check_in_browser
from tests.checksums import manifest_of

PACKAGE = Path(tercet.__file__).parent
SCRIPT = "\"'><script>alert(1)</script>{{ 7 * 7 }}"
FILE_SCRIPT = SCRIPT.replace("/", "")  # a file name has no slash


class Markup(HTMLParser):
    """Collects tags, and attributes that run code."""

    def __init__(self, content):
        super().__init__()
        self.tags, self.handlers = set(), []
        self.feed(content)

    def handle_starttag(self, tag, attributes):
        self.tags.add(tag)
        self.handlers += [name for name, _ in attributes if name.startswith("on")]


def assert_escaped(content):
    markup = Markup(content)
    assert "<script" not in content
    assert "script" not in markup.tags
    assert not markup.handlers
    assert "<script>alert(1)" in content.replace("&lt;", "<").replace("&gt;", ">")  # the text is there


def with_script(content):
    """The script after every string of a JSON document; keys stay."""
    if isinstance(content, dict):
        return {key: with_script(value) for key, value in content.items()}
    if isinstance(content, list):
        return [with_script(value) for value in content]
    return content + SCRIPT if isinstance(content, str) else content


def macro(call, **values):
    """The content of a macro of the templates."""
    name = call.partition("(")[0]
    text = f'{{% from "macros.html.j2" import {name} %}}{{{{ {call} }}}}'
    return environment().from_string(text).render(values)


@pytest.fixture(scope="module")
def hostile(tmp_path_factory):
    """Settings of a comparison with a script in the names of the data, images, captions, objectives, folders."""
    root = tmp_path_factory.mktemp("hostile")
    write_hostile_data(root / f"data{FILE_SCRIPT}", SCRIPT)
    file = root / f"mine{FILE_SCRIPT}.py"
    file.write_text("def own(S, positives):\n    return -positives.to(S.dtype)\n")
    return {
        "data": str(root / f"data{FILE_SCRIPT}"),
        "objectives": ("nt-xent", f"{file}:own"),
        "runs": root / f"runs{FILE_SCRIPT}",
        "epochs": 1,
        "no_tune": True,
        "seeds": 1,
        "train": {"batch_size": 40},
    }


@pytest.fixture(scope="module")
def compared(hostile):
    return tercet.compare(**hostile)


@pytest.fixture
def damaged(compared):
    """A script in every text of machine.json and settings.json, as in a run folder from someone else."""
    folders = [run.folder for by_seed in compared.results.runs.values() for run in by_seed.values()]
    files = [folder / name for folder in folders for name in (runs.SETTINGS, runs.MACHINE)]
    originals = {file: file.read_text() for file in files}
    for file, text in originals.items():
        if file.name == runs.SETTINGS:
            file.write_text(json.dumps(with_script(json.loads(text))))
            continue
        content = manifest_of(file)
        # There may be no git; only finished runs are read, and only with the right checksums.
        settings = sha256_of([file.parent / runs.SETTINGS])
        kept = {"ended": content["ended"], "checksums": content["checksums"] | {runs.SETTINGS: settings}}
        write_manifest(file, with_script({"commit": ""} | content) | kept)
    yield
    for file, text in originals.items():
        file.write_text(text)


def test_no_script_of_a_run_folder_or_of_the_data_is_in_the_report(hostile, damaged):
    result = tercet.compare(**hostile)
    failed = replace(result.results, failures=[Failure(f"a{SCRIPT}", f"reason{SCRIPT}")])
    page = replace(result, results=failed).save()
    content = page.read_text()
    assert_escaped(content)
    escaped = re.escape("&#34;&#39;&gt;&lt;script&gt;alert(1)")
    for before in ("Tercet [^<:]*", "torch [^<]*", "commit [^<]*", "reason", "<q>[^<]*", r"\.png", "mine"):
        assert re.search(before + escaped, content), before
    for setting in ("model&#34;: &#34;heads", "objective&#34;: &#34;nt-xent"):
        assert re.search(re.escape(f"{setting}\\") + escaped, content), setting
    for figure in page.parent.rglob("*.svg"):
        assert "<script" not in figure.read_text()
    check_in_browser(page, widths=(1280,))


@pytest.mark.slow
def test_no_script_of_the_data_or_an_objective_is_in_a_page_of_an_analysis(hostile, compared, tmp_path):
    folders = [compared.results.runs[name][0].folder for name in compared.results.names()]
    trust = (Path(hostile["objectives"][1].rpartition(":")[0]),)
    console = Console(quiet=True)
    settings = AnalyseSettings(
        (folders[0],),
        diagram=True,
        breakdown=True,
        examples=True,
        objectives=hostile["objectives"][1:],
        queries=("<script>", "image:1"),
        batch_size=40,
        out=tmp_path / "one",
        trust=trust,
    )
    written = list(analyse(settings, console))
    both = AnalyseSettings(tuple(folders), examples=True, out=tmp_path / "two", trust=trust)
    written += list(analyse(both, console))
    written.append(run_doctor(DoctorSettings(folders[1], out=tmp_path / "doctor", trust=trust))[1])
    pages = [file for file in written if file.suffix == ".html"]
    assert sorted(file.name for file in pages) == [
        "breakdown.html",
        "diagrams.html",
        "doctor.html",
        "examples.html",
        "examples.html",
    ]
    for page in pages:
        assert_escaped(page.read_text())
    for figure in tmp_path.rglob("*.svg"):
        assert "<script" not in figure.read_text()


def test_names_of_images_stay_inside_their_attribute():
    scene_split = scenes("test", 3).as_split("global")
    split = replace(scene_split, image_names=(f"1{SCRIPT}", *scene_split.image_names[1:]))
    model = build("heads", image_dim=3, caption_dim=3)  # only its similarity is used
    embedded = EmbeddedSplit("<i>", model, torch.eye(3), torch.eye(3)[split.owners], torch.from_numpy(split.pairs()))
    shown = page_example(example([embedded], "i2t", 0, 2), split, similarities=True)
    block = macro("example(shown)", shown=shown)
    assert_escaped(block)
    assert 'alt="1&#34;&#39;&gt;&lt;script&gt;' in block
    assert "&lt;i&gt;: rank" in block


def test_a_table_with_any_name():
    table = Table("t", ("objective", "x_1"), [("a|b_<c>", [Cell("1 %", True)]), ("$\\x{y}", [Cell("1±2")])])
    content = macro("wide_table(table)", table=table)
    assert '<th scope="row">a|b_&lt;c&gt;</th><td><b>1 %</b></td>' in content
    assert '<th scope="row">$\\x{y}</th><td>1±2</td>' in content
    assert 'aria-label="t"' in content
    assert 'aria-label="other"' in macro("wide_table(table, 'other')", table=table)


def test_an_image_without_a_file_is_shown_by_its_name_and_caption():
    split = replace(scenes("test", 2).as_split("global"), image_files=None)
    assert split.texts[0] in macro("item(shown)", shown=query_item(split, "i2t", 0))
    assert split.texts[0] not in macro("item(shown)", shown=query_item(split, "i2t", 0, caption_fallback=False))
    of_caption = macro("item(shown)", shown=query_item(split, "t2i", 1))
    text, name = split.texts[1], split.image_names[0]
    assert of_caption.split() == f'<q>{text}</q> <span class="nameless">{name}</span>'.split()


def test_a_missing_value_is_an_error():
    with pytest.raises(UndefinedError, match="figures"):
        render_page("diagrams.html", heading="no figures")


def test_only_figures_and_the_style_are_not_escaped():
    templates = {file.name: file.read_text() for file in PACKAGE.rglob("*.j2")}
    assert set(environment().list_templates()) == set(templates)
    found = [(name, line.strip()) for name, text in templates.items() for line in text.splitlines() if "safe" in line]
    assert sorted(found) == [
        ("macros.html.j2", "{{ figure.svg | safe }}"),
        ("page.html.j2", "{{ style | safe }}</style>"),
    ]
    assert not [name for name, text in templates.items() if "autoescape" in text]


TAG = re.compile(r"</?(a|div|figure|h[1-6]|html|img|li|ol|p|pre|q|section|span|table|t[dhr]|ul)[ >]|markupsafe")


def test_python_writes_no_markup():
    assert not [str(file) for file in PACKAGE.rglob("*.py") if TAG.search(file.read_text())]
    assert TAG.search('f"<p>{text}</p>"')
