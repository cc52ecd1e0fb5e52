"""What `tercet serve` answers under load, and whether an index finds what the evaluation finds.

    python benchmarks/search.py INDEX                     # a minute of load; writes benchmarks/results/search_<date>.md
    python benchmarks/search.py INDEX --test-index TEST_INDEX    # and R@10 through an index of the test split alone

INDEX is a folder of `tercet index` whose pictures have captions, made with a run. 50 clients on the same machine ask a
query a second each, a caption of the index chosen at random, over connections that stay open; none waits for the
others, and a query that is late counts from when it should have been sent. R@10 is that of every caption of
TEST_INDEX's pictures, asked through the server's own search, beside what the run's evaluation says of the test split.
"""

import argparse
import asyncio
import json
import platform
import random
import subprocess
import sys
import time
import urllib.request
from datetime import date
from pathlib import Path
from typing import NamedTuple
from urllib.parse import quote, urlsplit

import torch

from tercet import runs
from tercet.search.index import open_index
from tercet.search.query import Searcher

MOST_P95 = 150.0  # ms


class Load(NamedTuple):
    milliseconds: list[float]
    errors: list[str]

    def at(self, share: float) -> float:
        return sorted(self.milliseconds)[min(len(self.milliseconds) - 1, int(share * len(self.milliseconds)))]


async def client(address: str, texts: list[str], seconds: float, seed: int, load: Load) -> None:
    rng, split = random.Random(seed), urlsplit(address)
    reader, writer = await asyncio.open_connection(split.hostname, split.port)
    due = time.perf_counter() + rng.random()
    for _ in range(int(seconds)):
        await asyncio.sleep(max(0.0, due - time.perf_counter()))
        writer.write(f"GET /api/search?q={quote(rng.choice(texts))} HTTP/1.1\r\nHost: {split.netloc}\r\n\r\n".encode())
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        length = int(head.lower().split("content-length: ")[1].split("\r\n")[0])
        content = await reader.readexactly(length)
        load.milliseconds.append(1000 * (time.perf_counter() - due))
        if " 200 " not in head.splitlines()[0] or not json.loads(content)["results"]:
            load.errors.append(head.splitlines()[0])
        due += 1.0
    writer.close()
    await writer.wait_closed()


async def loaded(address: str, texts: list[str], clients: int, seconds: float) -> Load:
    load = Load([], [])
    await asyncio.gather(*(client(address, texts, seconds, n, load) for n in range(clients)))
    return load


def under_load(index: Path, clients: int, seconds: float) -> Load:
    command = [sys.executable, "-m", "tercet.cli", "serve", str(index), "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        try:
            assert server.stdout is not None
            address = server.stdout.readline().strip()
            while _is_opening(address):
                time.sleep(0.2)
            texts = [caption for item in open_index(index).items for caption in item.captions]
            return asyncio.run(loaded(address, texts, clients, seconds))
        finally:
            server.terminate()


def _is_opening(address: str) -> bool:
    with urllib.request.urlopen(f"{address}api/about") as answer:
        return any(each["state"] == "opening" for each in json.load(answer)["indexes"])


def recall_through(index: Path, k: int = 10) -> tuple[float, int]:
    """Share of captions, in per cent, whose own picture is among the first k; and how many captions."""
    searcher = Searcher.open(index)
    asked = [(caption, number) for number, item in enumerate(searcher.index.items) for caption in item.captions]
    found = 0
    for start in range(0, len(asked), 256):
        some = asked[start : start + 256]
        hits = searcher.many_words([caption for caption, _ in some], k)
        found += sum(number in [hit.number for hit in each] for each, (_, number) in zip(hits, some, strict=True))
    return 100 * found / len(asked), len(asked)


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("index", type=Path)
    parser.add_argument("--test-index", type=Path)
    parser.add_argument("--clients", type=int, default=50)
    parser.add_argument("--seconds", type=int, default=60)
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results")
    given = parser.parse_args(arguments)
    index = open_index(given.index)
    load = under_load(given.index, given.clients, given.seconds)
    met = load.at(0.95) < MOST_P95 and not load.errors
    lines = [
        f"# Search, {date.today()}",
        "",
        f"`python benchmarks/search.py`, torch {torch.__version__}, Python {platform.python_version()}; clients and "
        "server on the same machine.",
        "",
        f"An index of {len(index.items):,} pictures, {index.vectors.shape[1]} wide, "
        f"{index.manifest['model']['system']}; {given.clients} clients, a query a second each, {given.seconds} s.",
        "",
        "| queries | errors | median, ms | p95 | p99 | longest | target |",
        "|---:|---:|---:|---:|---:|---:|---|",
        f"| {len(load.milliseconds):,} | {len(load.errors)} | {load.at(0.5):.0f} | **{load.at(0.95):.0f}** | "
        f"{load.at(0.99):.0f} | {max(load.milliseconds):.0f} | p95 under {MOST_P95:g}, no error: "
        f"{'met' if met else 'missed'} |",
    ]
    if given.test_index is not None:
        through, captions = recall_through(given.test_index)
        run = Path(open_index(given.test_index).manifest["model"]["path"])
        said = runs.read_metrics(run)["t2i_r10"]
        lines += [
            "",
            f"R@10 of {captions:,} captions of the test split: {through:.2f} through the index, {said:.2f} by the "
            f"evaluation of {run.name}.",
        ]
    print("\n".join(lines))
    given.out.mkdir(exist_ok=True)
    (given.out / f"search_{date.today()}.md").write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
