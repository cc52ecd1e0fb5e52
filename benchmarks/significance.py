"""How often the tests of `tercet compare` are wrong and how much they find, by simulation and on stored results.

    python benchmarks/significance.py                 # ten minutes; writes benchmarks/results/significance_<date>.md
    python benchmarks/significance.py --runs runs/2*  # the repetition check on run folders instead of docs/results

Simulation: families of eight variants, 1,000 images, Holm over 28 pairs, under the model that the tests assume.
Standard deviations are those measured on Flickr8k with heads, in points of rsum: image 30.7, rest 48.9, seed 1.51.

Repetition: what is found with some seeds and half of the images is checked on the other seeds and images.
"""

import json
import sys
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from harness import make_parser, page_header, write_page

from tercet.comparison.family import holm_levels
from tercet.comparison.from_files import read_values
from tercet.comparison.settings import CompareSettings
from tercet.evaluation.significance import PairTests, pair_tests

RESULTS = Path(__file__).parents[1] / "docs" / "results"
VARIANTS, IMAGES = 8, 1000
IMAGE_STD, REST_STD, SEED_STD = 30.7, 48.9, 1.51
FIRST, SECOND = np.triu_indices(VARIANTS, 1)  # the order of itertools.combinations
LOOKS = CompareSettings(until_decided=True).looks
CHUNK = 50  # families drawn at a time
LEVEL = 0.05

ALIKE = np.zeros(VARIANTS)
STEPS = 10.0 * np.arange(VARIANTS)
EQUAL_PAIRS = np.repeat(100.0 * np.arange(VARIANTS // 2), 2)
BASELINE = (FIRST == 0) | (SECOND == 0)  # the first variant, which is the wild one


@dataclass(frozen=True)
class World:
    """How the seeds of the variants scatter."""

    name: str
    wild: float | None = None
    """Standard deviation of the first variant."""
    prior_df: int | None = None
    """Variances differ: inverse chi-square with these degrees of freedom."""

    def seed_stds(self, random: np.random.Generator, families: int) -> np.ndarray:
        stds = np.full((families, VARIANTS), SEED_STD)
        if self.wild is not None:
            stds[:, 0] = self.wild
        if self.prior_df is not None:
            stds *= np.sqrt(self.prior_df / random.chisquare(self.prior_df, (families, VARIANTS)))
        return stds

    @property
    def neighbors(self) -> np.ndarray:
        """Pairs of neighbors without the wild one."""
        return (SECOND - FIRST == 1) & ((FIRST > 0) | (self.wild is None))


WORLDS = {
    world.name: world
    for world in (
        World("all alike"),
        World("one wild, seed std 10", wild=10.0),
        World("one wild, seed std 30", wild=30.0),
        World("variances differ (prior df 2)", prior_df=2),
    )
}


def draw(random: np.random.Generator, world: World, seeds: int, means: np.ndarray, families: int) -> np.ndarray:
    """Values (family, variant, seed, image)."""
    shape = (families, VARIANTS, seeds, IMAGES)
    values = REST_STD * random.standard_normal(shape, dtype=np.float32).astype(np.float64)
    values += IMAGE_STD * random.standard_normal((families, VARIANTS, 1, IMAGES))
    values += world.seed_stds(random, families)[..., None, None] * random.standard_normal((*shape[:3], 1))
    return values + means[:, None, None]


def families_of(world: World, seeds: int, means: np.ndarray, families: int):
    """Chunks of `draw`, always the same."""
    random = np.random.default_rng(1)
    for start in range(0, families, CHUNK):
        yield draw(random, world, seeds, means, min(CHUNK, families - start))


def rejected_by_holm(p: np.ndarray, level: float = LEVEL) -> np.ndarray:
    """Which pairs of each family Holm's procedure rejects."""
    tests = p.shape[-1]
    order = np.argsort(p, axis=-1, kind="stable")
    passes = np.take_along_axis(p, order, axis=-1) < level / (tests - np.arange(tests))
    rejected = np.empty_like(passes)
    np.put_along_axis(rejected, order, np.logical_and.accumulate(passes, axis=-1), axis=-1)
    return rejected


def unmoderated(tests: PairTests, values: np.ndarray) -> PairTests:
    """The same tests with the variance of each pair alone."""
    first, second = np.triu_indices(values.shape[-3], 1)
    means = values.mean(axis=-1)
    own = (means[..., first, :] - means[..., second, :]).var(axis=-1, ddof=1)
    variance = np.maximum(own, tests.rest / tests.images) / tests.seeds
    return tests._replace(seed_variance=variance, pooled=np.full_like(tests.pooled, 2))


def simulate(world: World, seeds: int, means: np.ndarray, families: int, *, moderated: bool = True) -> np.ndarray:
    """Which pairs are rejected, (family, pair)."""
    found = []
    for values in families_of(world, seeds, means, families):
        tests = pair_tests(values)
        found.append(rejected_by_holm((tests if moderated else unmoderated(tests, values)).p))
    return np.concatenate(found)


def family_error(rejected: np.ndarray, means: np.ndarray) -> float:
    """Share of the families in which two variants with equal means are told apart."""
    return float(rejected[:, means[FIRST] == means[SECOND]].any(axis=1).mean())


def power(rejected: np.ndarray, world: World) -> float:
    return float(rejected[:, world.neighbors].mean())


def baseline_error(world: World, seeds: int, families: int) -> float:
    """The same error if only the differences to the first variant are tested."""
    rejected = [
        rejected_by_holm(pair_tests(values, baseline=0).p[:, BASELINE])
        for values in families_of(world, seeds, ALIKE, families)
    ]
    return float(np.concatenate(rejected).any(axis=1).mean())


def interval_error(world: World, seeds: int, means: np.ndarray, families: int) -> float:
    """Share of the families with an interval that does not contain the true difference."""
    missed, truth = [], means[FIRST] - means[SECOND]
    for values in families_of(world, seeds, means, families):
        tests = pair_tests(values)
        p, size = tests.p, np.abs(tests.difference)
        wide = tests.margin(LEVEL / p.shape[-1])
        own = tests.margin(np.array([holm_levels(list(family), LEVEL) for family in p]))
        near = np.where(rejected_by_holm(p) & (size <= wide), own, wide)
        toward = truth * np.sign(tests.difference)
        missed.append(((toward < size - near) | (toward > size + wide)).any(axis=1))
    return float(np.concatenate(missed).mean())


def until_decided(world: World, means: np.ndarray, families: int, share: float) -> tuple[float, float, float]:
    """Share of families with an error at any look, mean seeds until one is best, share where the best one was found."""
    equal, best = means[FIRST] == means[SECOND], int(np.argmax(means))
    wrong, seeds_used, right = [], [], []
    for values in families_of(world, LOOKS[-1], means, families):
        running = np.ones(len(values), dtype=bool)
        error, used, found = (np.zeros(len(values)) for _ in range(3))
        for seeds in LOOKS:
            tests = pair_tests(values[:, :, :seeds])
            rejected = rejected_by_holm(tests.p, LEVEL * share)
            false = equal | (np.sign(tests.difference) != np.sign(means[FIRST] - means[SECOND]))
            error = np.maximum(error, (rejected & false).any(axis=1))
            beaten = beaten_by_somebody(rejected, tests.difference)
            stops = running & (((~beaten).sum(axis=1) == 1) | (seeds == LOOKS[-1]))
            used = np.where(stops, seeds, used)
            found = np.where(stops, ((~beaten).sum(axis=1) == 1) & ~beaten[:, best], found)
            running &= ~stops
        wrong.append(error)
        seeds_used.append(used)
        right.append(found)
    return tuple(float(np.concatenate(each).mean()) for each in (wrong, seeds_used, right))


def beaten_by_somebody(rejected: np.ndarray, difference: np.ndarray) -> np.ndarray:
    beaten = np.zeros((len(rejected), VARIANTS), dtype=bool)
    for pair, (first, second) in enumerate(zip(FIRST, SECOND, strict=True)):
        beaten[:, second] |= rejected[:, pair] & (difference[:, pair] > 0)
        beaten[:, first] |= rejected[:, pair] & (difference[:, pair] < 0)
    return beaten


@dataclass(frozen=True)
class Repetition:
    """What one half of seeds and images finds, and the other half says of it; means over draws of variants."""

    found: float
    found_unmoderated: float
    same_sign: float
    """Share of the found differences that have the same sign on the other seeds and images."""
    draws: int


def repetition(
    values: dict[str, np.ndarray], *, variants: int = VARIANTS, draws: int = 200, seeds: int = 3
) -> Repetition:
    """Find with the first seeds and a random half of the images, check on the other seeds and images."""
    random, names = np.random.default_rng(0), list(values)
    found, before, same = [], [], []
    for _ in range(draws):
        chosen = np.stack([values[name] for name in random.choice(names, variants, replace=False)])
        order = random.permutation(chosen.shape[2])
        half, other = order[: len(order) // 2], order[len(order) // 2 :]
        train = chosen[:, :seeds][:, :, half]
        tests = pair_tests(train)
        rejected = rejected_by_holm(tests.p[None])[0]
        means = chosen[:, seeds:][:, :, other].mean(axis=(1, 2))
        first, second = np.triu_indices(variants, 1)
        checked = np.sign(means[first] - means[second]) == np.sign(tests.difference)
        found.append(rejected.sum())
        before.append(rejected_by_holm(unmoderated(tests, train).p[None])[0].sum())
        same += checked[rejected].tolist()
    return Repetition(float(np.mean(found)), float(np.mean(before)), float(np.mean(same)) if same else np.nan, draws)


def stored_values(section: str) -> dict[str, np.ndarray]:
    """Contributions to rsum of the runs of docs/results/flickr8k.jsonl, (seed, image) by objective."""
    sys.path.insert(0, str(RESULTS))
    import flickr8k

    by_name: dict[str, dict[int, np.ndarray]] = defaultdict(dict)
    for text in (RESULTS / "flickr8k.jsonl").read_text().splitlines():
        line = json.loads(text)
        if line["section"] == section:
            by_name[flickr8k.named(line)][line["seed"]] = flickr8k.unpacked(line["per_image"])
    return {name: np.stack([rows[seed] for seed in sorted(rows)]) for name, rows in by_name.items()}


def worlds_table(families: int) -> list[str]:
    lines = [
        "| world | seeds | family-wise error (unmoderated) | power (unmoderated) | equal pairs among others | "
        "intervals that miss | error against a baseline |",
        "|---|---|---|---|---|---|---|",
    ]
    for name, seeds in [*((name, 3) for name in WORLDS), ("all alike", 5)]:
        world = WORLDS[name]
        cells = [
            f"{family_error(simulate(world, seeds, ALIKE, families, moderated=moderated), ALIKE):.3f}"
            for moderated in (True, False)
        ] + [
            f"{power(simulate(world, seeds, STEPS, families, moderated=moderated), world):.3f}"
            for moderated in (True, False)
        ]
        equal = family_error(simulate(world, seeds, EQUAL_PAIRS, families), EQUAL_PAIRS)
        misses = max(interval_error(world, seeds, means, families // 2) for means in (ALIKE, STEPS, EQUAL_PAIRS))
        baseline = baseline_error(world, seeds, families)
        lines.append(
            f"| {name} | {seeds} | {cells[0]} ({cells[1]}) | {cells[2]} ({cells[3]}) | {equal:.3f} | {misses:.3f} | "
            f"{baseline:.3f} |"
        )
    return lines


def looks_table(families: int) -> list[str]:
    ahead = np.array([-10.0, 0.0, -20.0, -20.0, -30.0, -30.0, -30.0, 6.0])  # the wild one is not the best
    lines = [
        f"Tests at {', '.join(map(str, LOOKS))} seeds, each with 1/{len(LOOKS)} of the error rate; in brackets with "
        "all of it at each. Error: all alike; seeds and found: one variant is 6 points ahead of the next.",
        "",
        "| world | error at any look | mean seeds | best one found |",
        "|---|---|---|---|",
    ]
    for name, world in WORLDS.items():
        cells = []
        for share in (1 / len(LOOKS), 1.0):
            error = until_decided(world, ALIKE, families, share)[0]
            _, seeds, found = until_decided(world, ahead, families, share)
            cells.append((f"{error:.3f}", f"{seeds:.1f}", f"{found:.2f}"))
        lines.append(f"| {name} | {' | '.join(f'{ours} ({naive})' for ours, naive in zip(*cells, strict=True))} |")
    return lines


def repetition_table(sets: dict[str, dict[str, np.ndarray]]) -> list[str]:
    lines = [
        "| runs | objectives | seeds, images | pairs found | unmoderated | same sign on the others |",
        "|---|---|---|---|---|---|",
    ]
    for name, values in sets.items():
        seeds, images = next(iter(values.values())).shape
        variants = min(VARIANTS, len(values))
        found_with = min(3, seeds - 1)
        draws = 200 if len(values) > variants else 20
        checked = repetition(values, variants=variants, draws=draws, seeds=found_with)
        lines.append(
            f"| {name} | {len(values)} | {found_with} of {seeds}, {images // 2} of {images:,} | {checked.found:.1f} | "
            f"{checked.found_unmoderated:.2f} | {100 * checked.same_sign:.1f} % |"
        )
    return lines


def main() -> None:
    parser = make_parser(__doc__)
    parser.add_argument("--families", type=int, default=4000)
    parser.add_argument("--runs", type=Path, nargs="*", help="run folders for the repetition check")
    arguments = parser.parse_args()
    if arguments.runs:
        print("\n".join(repetition_table({"run folders": read_values(arguments.runs, "rsum")[0]})))
        return
    families = arguments.families
    sets = {title: stored_values(section) for section, title in (("heads", "Flickr8k heads"), ("heads-tuned", "tuned"))}
    lines = [
        *page_header("Significance tests", "significance", f"{families:,} families of {VARIANTS} variants"),
        "Power: neighbors 10 points apart, without the wild one. Equal pairs among others: family-wise error if four "
        "pairs have equal means and differ from each other by 100 points. Intervals that miss: families in which one "
        "of the 28 simultaneous intervals does not contain the difference, the largest of three arrangements of means.",
        "",
        *worlds_table(families),
        "",
        "## Seeds until decided",
        "",
        *looks_table(families // 4),
        "",
        "## Repetition on other seeds and images",
        "",
        "Stored per-image results, 200 draws of 8 objectives: found with 3 seeds and half of the images, checked on "
        "the other seeds and images.",
        "",
        *repetition_table(sets),
    ]
    print("\n".join(lines))
    write_page(arguments.out, "significance", lines)


if __name__ == "__main__":
    main()
