"""How many files of the package must be read to follow one training step, or one `tercet compare` of a CSV.

python benchmarks/files_entered.py            # counts; --names lists the files
PYTHONPATH=/path/to/another/src python benchmarks/files_entered.py

A file counts when one of its functions is called. The step is a warm one (heads, nt-xent, batches of 128, samples are
not counted), traced from the moment its batch is fetched until `optimizer.step`. The comparison includes all processes.
"""

import argparse
import csv
import inspect
import os
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch.optim.optimizer import register_optimizer_step_pre_hook

import tercet

PACKAGE = Path(tercet.__file__).parent
WARM_STEP = 25  # not a step at which samples are counted: those are every twentieth


def file_of(frame) -> str | None:
    name = frame.f_code.co_filename
    ours = name.startswith(str(PACKAGE)) and name.endswith(".py")  # not the templates of pages
    return str(Path(name).relative_to(PACKAGE)) if ours and not is_import(frame) else None


def is_import(frame) -> bool:
    """Whether the frame is the body of a module or class, or was called from one: an import is not a call."""
    while frame is not None:
        is_body = not frame.f_code.co_flags & inspect.CO_OPTIMIZED
        if is_body and frame.f_code.co_filename.startswith(str(PACKAGE)):
            return True
        frame = frame.f_back
    return False


def files_of_a_step() -> set[str]:
    """Of one training step, from the batch in hand to the optimizer."""
    try:
        from tercet.data.collate import Collator
    except ImportError:  # as it was called before
        from tercet.data.batches import Batches as Collator

    seen: set[str] = set()
    steps = [0]

    def profile(frame, event: str, _argument) -> None:
        if event == "call" and (name := file_of(frame)):
            seen.add(name)

    fetch: Callable = Collator.run

    def traced(self, *given, **named) -> Iterator:
        for batch in fetch(self, *given, **named):
            if steps[0] == WARM_STEP:
                sys.setprofile(profile)
            yield batch

    def stop(*_) -> None:
        sys.setprofile(None)
        steps[0] += 1

    Collator.run = traced
    hook = register_optimizer_step_pre_hook(stop)
    try:
        with tempfile.TemporaryDirectory() as folder:
            tercet.train(data="scenes:600", objective="nt-xent", batch_size=128, epochs=2, runs=folder)
    finally:
        hook.remove()
        Collator.run = fetch
    assert steps[0] > WARM_STEP, f"only {steps[0]} steps were made"
    return seen


@contextmanager
def traced_with_children(log: Path) -> Iterator[None]:
    """Every process appends the files that it enters: children are forked, and inherit the profile function."""
    seen: set[tuple[int, str]] = set()

    def profile(frame, event: str, _argument) -> None:
        if event == "call" and (name := file_of(frame)) and (os.getpid(), name) not in seen:
            seen.add((os.getpid(), name))
            with log.open("a") as stream:
                stream.write(f"{name}\n")

    threading.setprofile(profile)
    sys.setprofile(profile)
    try:
        yield
    finally:
        sys.setprofile(None)
        threading.setprofile(None)


def files_of_a_comparison(folder: Path) -> set[str]:
    write_photos(folder)
    log = folder / "entered.txt"
    with traced_with_children(log):
        comparison = tercet.compare(
            data=str(folder / "photos.csv"),
            image_encoder="efficientnet-lite2",
            text_encoder="bag-of-words",
            objectives=("triplet-sh", "nt-xent"),
            seeds=2,
            epochs=1,
            no_tune=True,
            runs=folder / "runs",
        )
        comparison.save()
    return set(log.read_text().split())


def write_photos(folder: Path) -> None:
    generator = np.random.default_rng(0)
    with (folder / "photos.csv").open("w", newline="") as stream:
        rows = csv.writer(stream)
        rows.writerow(["image", "caption", "split"])
        for number in range(220):
            name = f"{number}.png"
            Image.fromarray(generator.integers(0, 255, (32, 32, 3), dtype=np.uint8)).save(folder / name)
            rows.writerow([name, f"a photo of thing {number}", "train" if number < 160 else "test"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--names", action="store_true", help="list the files too")
    given = parser.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        found = {"one training step": files_of_a_step(), "compare on a CSV": files_of_a_comparison(Path(folder))}
    for what, files in found.items():
        lines = sum(len((PACKAGE / file).read_text().splitlines()) for file in files)
        print(f"{what}: {len(files)} files, {lines:,} lines")
        if given.names:
            print(*sorted(files), sep="\n", end="\n\n")


if __name__ == "__main__":
    main()
