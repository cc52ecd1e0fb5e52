"""Shapes and types of the whole package are checked while tests run, and only then."""

import os

import jaxtyping
import pytest

# One thread a process: tests run side by side, and threads of several processes on two cores wait for each other.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ["HF_HUB_OFFLINE"] = "1"  # before anything of Hugging Face is imported: tests never wait for a network

jaxtyping.install_import_hook("tercet", "beartype.beartype")


@pytest.fixture
def without_shape_checks():
    """As users run it: for tests of what they are told, and for tests that compile."""
    jaxtyping.config.update("jaxtyping_disable", True)
    yield
    jaxtyping.config.update("jaxtyping_disable", False)
