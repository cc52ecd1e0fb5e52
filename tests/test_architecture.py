"""The house rules: who may import whom (the flow goes one way), and what modules and classes may be called."""

import ast
import re
from collections import Counter
from pathlib import Path

PACKAGE = Path(__file__).parents[1] / "src" / "tercet"

BASE = {
    *("types", "interfaces", "storage", "names", "plugins", "in_memory", "console", "interrupt"),
    *("single_backward", "hub"),
}
LIBRARY = BASE | {"data", "similarity", "objectives", "evaluation", "models", "inference", "legacy", "analysis"}
# part -> the parts of tercet it may import, besides itself. `analysis.reports` is the half of analysis that loads runs.
MAY_IMPORT = {
    "types": set(),
    "interfaces": {"types"},
    "storage": set(),
    "names": set(),
    "console": set(),
    "interrupt": set(),
    "single_backward": set(),
    "hub": set(),
    "plugins": {"names"},
    "in_memory": {"names"},
    "data": BASE,
    "similarity": BASE,
    "objectives": BASE,
    "evaluation": BASE,
    "models": BASE | {"similarity", "recipes"},
    "recipes": {"hub"},
    "inference": BASE | {"data", "models", "similarity"},
    "legacy": BASE | {"objectives", "evaluation"},
    "analysis": BASE | {"data", "objectives", "evaluation", "legacy"},
    "runs": BASE,
    "reporting": {"data", "runs"},
    "exporting": LIBRARY | {"runs"},
    "mining": BASE | {"data", "similarity", "analysis"},
    "training": LIBRARY | {"recipes", "runs", "mining", "reporting"},
    "comparison": LIBRARY | {"runs", "training", "reporting"},
    "analysis.reports": LIBRARY | {"runs", "training", "comparison", "reporting"},
    "search": LIBRARY | {"runs", "training", "reporting"},
    "serve": LIBRARY | {"runs", "training", "reporting", "search"},
    "fitting": LIBRARY | {"runs", "training", "comparison", "reporting", "search"},
    "integrations": LIBRARY | {"training"},
    "cli": LIBRARY
    | {"recipes", "runs", "training", "comparison", "analysis.reports", "search", "serve", "exporting", "fitting"},
    "api": {"data", "objectives", "training", "comparison", "fitting"},
    "__main__": {"cli"},
}
SUBPARTS = {part for part in MAY_IMPORT if "." in part}

NOT_A_CONCEPT = {"utils", "util", "common", "helpers", "misc"}
SHARED_NAMES = {"__init__", "settings", "registry", "base"}
SYSTEMS = {"heads", "vsepp", "vsrn", "vse_infinity", "scan", "bfan", "xvlm", "clip", "text_towers"}

FILES = sorted(file for file in PACKAGE.rglob("*.py") if file != PACKAGE / "__init__.py")


def part_of(dotted: str) -> str:
    """`data.formats.precomp` -> `data`."""
    subpart = ".".join(dotted.split(".")[:2])
    return subpart if subpart in SUBPARTS else dotted.split(".")[0]


def name_of(file: Path) -> str:
    return ".".join(file.relative_to(PACKAGE).with_suffix("").parts).removesuffix(".__init__")


def imported_parts(source: str) -> set[str]:
    parts = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports are absolute"
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        else:
            continue
        parts |= {part_of(name.removeprefix("tercet.")) for name in names if name.startswith("tercet.")}
    return parts


def test_imports_follow_the_flow():
    forbidden = {}
    for file in FILES:
        part = part_of(name_of(file))
        assert part in MAY_IMPORT, f"{file}: {part} has no row in the table"
        forbidden[file] = imported_parts(file.read_text()) - {part} - MAY_IMPORT[part]
    assert not {str(file): parts for file, parts in forbidden.items() if parts}


def test_a_wrong_import_would_be_seen():
    assert imported_parts("from tercet.training import train\nimport tercet.models") == {"training", "models"}
    assert not imported_parts("from tercet.training import train") <= MAY_IMPORT["objectives"]
    assert imported_parts("from tercet.analysis.reports import analyse") == {"analysis.reports"}


BLIND = re.compile(r"model: Any|hasattr\((self\.)?(\w+\.)?model\b|\bsystem (==|!=) \"|\bsystem in [A-Z(]")


def test_models_are_asked_by_protocols():
    """Not by attribute names, and not by the name of their system: the type checker would see neither."""
    found = [str(file) for file in FILES if BLIND.search(file.read_text())]
    assert not found
    assert BLIND.search("if hasattr(retriever.model, 'match'):")
    assert BLIND.search('if system == "xvlm":')


def test_no_module_is_a_drawer():
    assert not {file.stem for file in FILES} & NOT_A_CONCEPT


def repeated_module_names(files: list[Path]) -> set[str]:
    """Base names that two modules share, besides those that every package may have and a system's own."""
    counts = Counter(file.stem for file in files if file.stem not in SHARED_NAMES)
    of_a_system = {
        file for file in files if file.stem in SYSTEMS and ("models" in file.parts or "recipes" in file.parts)
    }
    counts -= Counter(
        {stem: sum(file.stem == stem for file in of_a_system) - 1 for stem in {f.stem for f in of_a_system}}
    )
    return {stem for stem, count in counts.items() if count > 1}


def repeated_class_names(sources: list[str]) -> set[str]:
    names = [
        node.name
        for source in sources
        for node in ast.parse(source).body
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_")
    ]
    return {name for name, count in Counter(names).items() if count > 1}


def test_a_name_belongs_to_one_module_and_one_class():
    assert not repeated_module_names(FILES)
    # An adapter's names are used with that of its module: open_clip.Loss, pml.Loss.
    assert not repeated_class_names([file.read_text() for file in FILES if file.parent.name != "integrations"])


def test_a_repeated_name_would_be_seen():
    assert repeated_module_names([Path("data/tiles.py"), Path("search/tiles.py")]) == {"tiles"}
    assert not repeated_module_names([Path("models/scan.py"), Path("recipes/scan.py"), Path("a/settings.py")])
    assert repeated_module_names([Path("models/scan.py"), Path("data/scan.py")]) == {"scan"}
    assert repeated_class_names(["class Rows: ...", "class Rows: ..."]) == {"Rows"}
