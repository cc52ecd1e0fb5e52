"""Results of a comparison without training: run folders written by the test."""

import numpy as np

from tercet import runs
from tercet.comparison.plan import Variant
from tercet.comparison.results import Results, read_run
from tercet.evaluation import RankTable
from tercet.evaluation.metrics import contributions
from tercet.storage import write_json


def ranks_of(random, images, quality):
    """Random ranks with three captions per image; the higher the quality, the smaller the ranks; 0 is chance."""
    image = np.repeat(np.arange(images), 3)
    ranks = {
        direction: 1 + (random.exponential(20 / quality, 3 * images)).astype(np.int64)
        if quality
        else random.integers(1, candidates + 1, 3 * images)
        for direction, candidates in (("i2t", 3 * images - 2), ("t2i", images))
    }
    arrays = {"image": image, "caption": np.arange(3 * images)}
    for direction, rank in ranks.items():
        arrays |= {f"{direction}_rank": rank, f"{direction}_rank_negatives": rank}
    return arrays


def write_run(root, name, seed, ranks, seconds=1.0, learning_rate=1e-3, pairs_seen=12800, curve=()):
    folder = root / f"20260101_made_heads_{name.replace('/', '+')}_s{seed}_{runs.run_hash({'name': name}, str(seed))}"
    folder.mkdir(parents=True)
    metrics = {
        m: float(contributions(RankTable(ranks), m).mean())
        for m in ("i2t_r1", "i2t_r5", "i2t_r10", "t2i_r1", "t2i_r5", "t2i_r10", "rsum")
    }
    write_json(folder / runs.SETTINGS, {"learning_rate": learning_rate, "objective": name, "seed": seed})
    final = {
        "final": True,
        "split": "test",
        "step": 100,
        "clipped_steps": 25,
        "pairs_seen": pairs_seen,
        "i2t_queries": float(ranks["image"].max() + 1),
    }
    lines = runs.MetricsFile(folder, 0)
    for epoch, value in enumerate(curve, 1):
        lines.append({"epoch": epoch, "step": 20 * epoch, "split": "validation", "rsum": value})
    lines.append(final | metrics)
    runs.write_ranks(folder, ranks)
    runs.finish_run(folder, {"memory_mb": 12.0}, {}, seconds=seconds)
    return folder


def make_results(root, qualities, seeds=3, images=200, failures=(), curves=None, chance=(), better_seed=0):
    """Results of variants with these qualities, over shared seeds and images; `curves`: rsum on validation by epoch."""
    by_variant = {}
    for name, quality in qualities.items():
        random = np.random.default_rng(int(10 * quality))  # equal qualities, equal ranks
        for seed in range(seeds):
            ranks = ranks_of(random, images, 0 if name in chance else quality)
            curve = [value + (seed == better_seed) for value in (curves or {}).get(name, ())]
            folder = write_run(root, name, seed, ranks, curve=curve)
            by_variant.setdefault(name, {})[seed] = read_run(folder, seed)
    return Results([Variant(name, name) for name in qualities], by_variant, failures)
