"""Letters that show the significant differences of a table: rows that share a letter cannot be told apart."""

from collections.abc import Collection, Sequence
from string import ascii_letters


def group_letters(order: Sequence[str], different: Collection[tuple[str, str]]) -> dict[str, str]:
    """Letters of each name (a compact letter display, Piepho 2004); `different`: pairs with a significant difference.

    >>> group_letters(["x", "y", "z"], [("x", "z")])
    {'x': 'a', 'y': 'ab', 'z': 'b'}
    """
    groups = [frozenset(order)]
    for first, second in different:
        divided = [part for group in groups for part in _divide(group, first, second)]
        groups = [group for group in dict.fromkeys(divided) if not any(group < other for other in divided)]
    groups.sort(key=lambda group: sorted(map(order.index, group)))
    if len(groups) > len(ascii_letters):
        return {}
    return {
        name: "".join(letter for letter, group in zip(ascii_letters, groups, strict=False) if name in group)
        for name in order
    }


def _divide(group: frozenset[str], first: str, second: str) -> list[frozenset[str]]:
    return [group - {second}, group - {first}] if {first, second} <= group else [group]
