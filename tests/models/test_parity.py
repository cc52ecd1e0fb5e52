"""Equal to the authors' programs: outputs, intermediate values, training-mode BatchNorm, gradients, checkpoints."""

import re

import pytest
import torch

from tests.models.parity import CASES, PAGE, golden, table


@pytest.mark.parametrize("name", CASES)
def test_every_number_of_the_golden_is_ours(name):
    _, tolerance, rows = CASES[name]
    for row in rows():
        torch.testing.assert_close(
            row.found.detach().double(),
            row.wanted.double(),
            rtol=0,
            atol=tolerance,
            msg=lambda text, r=row: f"{r.what}: {text}",
        )


@pytest.mark.parametrize("name", [name for name in CASES if not name.startswith("ckpt")])
def test_no_output_of_a_golden_is_left_out(name):
    """As many comparisons as it has results, but for greedy decoding, which nothing here needs."""
    results = [key for key in golden(name) if key.startswith("out.") and "greedy" not in key]
    assert len(list(CASES[name][2]())) >= len(results)


def test_the_table_on_the_page_is_the_one_that_is_made():
    def without_errors(text):
        return re.sub(r"\| (0|< 1e-\d+) \|", "| |", text)

    assert without_errors(table()) in without_errors(PAGE.read_text())
