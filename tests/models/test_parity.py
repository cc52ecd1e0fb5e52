"""Equal to the authors' programs: outputs, intermediate values, training-mode BatchNorm, gradients, checkpoints."""

import re

import pytest
import torch

from tests.models.parity import PAGE, all_cases, golden, table

CASES = all_cases()
GOLDENS = sorted({name.split(",")[0] for name in CASES if not name.startswith("ckpt")})


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


@pytest.mark.parametrize("name", GOLDENS)
def test_no_output_of_a_golden_is_left_out(name):
    """As many comparisons as it has results, but for greedy decoding, which nothing here needs."""
    results = [key for key in golden(name) if key.startswith("out.") and "greedy" not in key]
    compared = [row for case in CASES if case.split(",")[0] == name for row in CASES[case][2]()]
    assert len(compared) >= len(results)


def test_the_table_on_the_page_is_the_one_that_is_made():
    def without_errors(text):
        return re.sub(r"\| (0|< 1e-\d+) \|", "| |", text)

    assert without_errors(table()) in without_errors(PAGE.read_text())
