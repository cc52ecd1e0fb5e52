"""Shapes and types of the whole package are checked while tests run, and only then."""

import importlib.util
import os
import tempfile
from pathlib import Path

import jaxtyping
import pytest

from tests import shape_checks

# One thread a process: tests run side by side, and threads of several processes on two cores wait for each other.
os.environ.setdefault("OMP_NUM_THREADS", "1")
# Some virtual machines report AMX and do not allow it: bfloat16 products would end in an illegal instruction.
os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_BF16")
# pytest imports readline, which sets these below os.environ: commands in a process of their own would print narrower.
os.unsetenv("COLUMNS")
os.unsetenv("LINES")
os.environ["HF_HUB_OFFLINE"] = "1"  # before anything of Hugging Face is imported: tests never wait for a network

# Processes that tests start in any folder import the package that is tested here.
spec = importlib.util.find_spec("tercet")
assert spec is not None
assert spec.origin is not None
source = str(Path(spec.origin).resolve().parents[1])
os.environ["PYTHONPATH"] = os.pathsep.join([source, *filter(None, [os.environ.get("PYTHONPATH")])])

shape_checks.install()


# Files that take longest, started first: one of them started last would run alone, with the other core idle.
LONGEST = (
    "serve/test_page.py",
    "serve/test_server.py",
    "test_cli.py",
    "comparison/test_compare.py",
    "training/test_train.py",
    "training/test_aoq_step.py",
    "analysis/reports/test_doctor_report.py",
    "analysis/reports/test_analyse.py",
    "models/test_outside_model.py",
    "models/test_clip.py",
    "models/test_systems.py",
    "training/test_runtime.py",
)


def pytest_collection_modifyitems(items):
    order = {Path(__file__).parent / name: number for number, name in enumerate(LONGEST)}
    items.sort(key=lambda item: order.get(item.path, len(order)))


@pytest.fixture(scope="session", autouse=True)
def _temporary_files_are_removed_by_pytest(tmp_path_factory):
    tempfile.tempdir = str(tmp_path_factory.getbasetemp())


@pytest.fixture
def without_shape_checks():
    """As users run it: for tests of what they are told, and for tests that compile."""
    jaxtyping.config.update("jaxtyping_disable", True)
    yield
    jaxtyping.config.update("jaxtyping_disable", False)
