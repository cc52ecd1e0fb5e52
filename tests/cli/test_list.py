"""`tercet list`: what it prints."""

from tercet.cli.list import LISTS
from tercet.objectives import OBJECTIVES
from tercet.objectives.registry import objective


def test_settings_that_cells_of_goal_share_are_printed_once():
    listed = LISTS["objectives"]()
    cells = [name for name in listed if "/" in name]
    assert len(cells) == 15
    (first,) = (name for name in cells if "=" in listed[name])
    assert listed[first].startswith("reduction=sum, margin=0.2, tau=10.0")
    for name in cells:
        assert objective(name).settings == objective(first).settings
        assert name == first or listed[name] == f"the settings of {first}"
    assert set(OBJECTIVES) <= set(listed)
    assert listed["triplet-sh"] == "reduction=sum, margin=0.2"
