"""Latency of `tercet serve` under load, and recall through an index against the evaluation.

    python benchmarks/search.py INDEX                     # a minute of load; writes benchmarks/results/search_<date>.md
    python benchmarks/search.py INDEX --test-index TEST_INDEX    # and R@10 through an index of the test split

INDEX is a folder of `tercet index` whose images have captions, built with a run. 50 clients on the same machine each
send one query per second, a random caption of the index, over persistent connections; clients do not wait for each
other, and the latency of a late query counts from its scheduled time. R@10 is over all captions of TEST_INDEX's images,
through the server's own search, next to the run's evaluation of the test split.
"""

import asyncio
import json
import random
import subprocess
import sys
import time
import urllib.request
from pathlib import Path
from typing import NamedTuple
from urllib.parse import quote, urlsplit

from harness import make_parser, page_header, write_page

from tercet import runs
from tercet.search.index import open_index
from tercet.search.searcher import Searcher

MAX_P95 = 150.0  # ms


class Load(NamedTuple):
    milliseconds: list[float]
    errors: list[str]

    def quantile(self, q: float) -> float:
        return sorted(self.milliseconds)[min(len(self.milliseconds) - 1, int(q * len(self.milliseconds)))]


async def run_client(address: str, texts: list[str], seconds: float, seed: int, load: Load) -> None:
    rng, url = random.Random(seed), urlsplit(address)
    reader, writer = await asyncio.open_connection(url.hostname, url.port)
    due = time.perf_counter() + rng.random()
    for _ in range(int(seconds)):
        await asyncio.sleep(max(0.0, due - time.perf_counter()))
        writer.write(f"GET /api/search?q={quote(rng.choice(texts))} HTTP/1.1\r\nHost: {url.netloc}\r\n\r\n".encode())
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        length = int(head.lower().split("content-length: ")[1].split("\r\n")[0])
        content = await reader.readexactly(length)
        load.milliseconds.append(1000 * (time.perf_counter() - due))
        if " 200 " not in head.splitlines()[0] or not json.loads(content)["results"]:
            load.errors.append(head.splitlines()[0])
        due += 1.0
    writer.close()
    await writer.wait_closed()


async def run_clients(address: str, texts: list[str], clients: int, seconds: float) -> Load:
    load = Load([], [])
    await asyncio.gather(*(run_client(address, texts, seconds, seed, load) for seed in range(clients)))
    return load


def measure_load(index: Path, clients: int, seconds: float) -> Load:
    """Start a server and return the latencies and errors of all queries."""
    command = [sys.executable, "-m", "tercet", "serve", str(index), "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        try:
            assert server.stdout is not None
            address = server.stdout.readline().strip()
            while _is_opening(address):
                time.sleep(0.2)
            texts = [caption for item in open_index(index).items for caption in item.captions]
            return asyncio.run(run_clients(address, texts, clients, seconds))
        finally:
            server.terminate()


def _is_opening(address: str) -> bool:
    with urllib.request.urlopen(f"{address}api/about") as response:
        return any(index["state"] == "opening" for index in json.load(response)["indexes"])


def recall_through_index(index: Path, k: int = 10) -> tuple[float, int]:
    """Return R@k of captions in percent through the search, and the number of captions."""
    searcher = Searcher.open(index)
    queries = [(caption, row) for row, item in enumerate(searcher.index.items) for caption in item.captions]
    correct = 0
    for start in range(0, len(queries), 256):
        batch = queries[start : start + 256]
        results = searcher.search_texts([caption for caption, _ in batch], k)
        correct += sum(row in [hit.number for hit in hits] for hits, (_, row) in zip(results, batch, strict=True))
    return 100 * correct / len(queries), len(queries)


def main(arguments: list[str] | None = None) -> None:
    parser = make_parser(__doc__)
    parser.add_argument("index", type=Path)
    parser.add_argument("--test-index", type=Path)
    parser.add_argument("--clients", type=int, default=50)
    parser.add_argument("--seconds", type=int, default=60)
    options = parser.parse_args(arguments)
    index = open_index(options.index)
    load = measure_load(options.index, options.clients, options.seconds)
    met = load.quantile(0.95) < MAX_P95 and not load.errors
    lines = [
        *page_header("Search", "search", "clients and server on the same machine."),
        f"An index of {len(index.items):,} images, dim {index.vectors.shape[1]}, "
        f"{index.manifest['model']['system']}; {options.clients} clients, one query per second each, "
        f"{options.seconds} s.",
        "",
        "| queries | errors | median, ms | p95 | p99 | max | target |",
        "|---:|---:|---:|---:|---:|---:|---|",
        f"| {len(load.milliseconds):,} | {len(load.errors)} | {load.quantile(0.5):.0f} | "
        f"**{load.quantile(0.95):.0f}** | {load.quantile(0.99):.0f} | {max(load.milliseconds):.0f} | "
        f"p95 below {MAX_P95:g}, no errors: {'met' if met else 'missed'} |",
    ]
    if options.test_index is not None:
        through, captions = recall_through_index(options.test_index)
        run = Path(open_index(options.test_index).manifest["model"]["path"])
        evaluated = runs.read_metrics(run)["t2i_r10"]
        lines += [
            "",
            f"R@10 of {captions:,} captions of the test split: {through:.2f} through the index, {evaluated:.2f} by the "
            f"evaluation of {run.name}.",
        ]
    print("\n".join(lines))
    write_page(options.out, "search", lines)


if __name__ == "__main__":
    main()
