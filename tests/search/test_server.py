"""The server as a process of its own: answers, refusals, hostile visitors, and how it ends."""

import io
import json
import os
import signal
import socket
import subprocess
import sys
import time
import zlib
from concurrent.futures import ThreadPoolExecutor
from http.client import HTTPConnection
from urllib.parse import urlencode, urlsplit

import numpy as np
import pytest
import torch
from PIL import Image

import tercet
from tercet.analysis.diagram import plane
from tercet.search.query import Searcher
from tests.search.made import get, index, model, serving
from tests.search.test_index import draw
from tests.training.small import SMALL


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("served")
    for name, seed in (("first", 0), ("second", 1)):
        index(folder, name, model("vsepp", seed))
    index(folder, "scan", model("scan"))
    draw(folder / "photos", [f"p{n:02d}" for n in range(5)])
    index(folder, "photos_index", model("vsepp"), folder / "photos")
    tercet.train(**SMALL, objective="nt-xent", runs=folder / "runs")
    return folder


@pytest.fixture(scope="module")
def address(folder):
    indexes = [folder / name for name in ("first", "second", "scan", "photos_index")]
    with serving(*indexes, "--runs", folder / "runs") as (address, _):
        yield address


def png(picture):
    content = io.BytesIO()
    picture.save(content, format="PNG")
    return content.getvalue()


def test_words_find_what_the_index_finds(address, folder):
    status, found = get(address, "/api/search", q="a red square", k=4)
    expected = Searcher.open(folder / "first").words("a red square", 4)
    assert status == 200
    assert found["index"] == "first"
    assert [each["number"] for each in found["results"]] == [hit.number for hit in expected]
    assert [each["rank"] for each in found["results"]] == [1, 2, 3, 4]
    assert np.allclose(
        [each["similarity"] for each in found["results"]], [hit.similarity for hit in expected], atol=1e-5
    )
    assert str(folder) not in json.dumps(found)  # where things lie is nobody's business


def test_those_who_ask_together_get_their_own_answers(address, folder):
    texts = ["a red square", "a blue ring", "two things on snow", "a star"] * 8
    searcher = Searcher.open(folder / "second")
    expected = {text: [hit.number for hit in searcher.words(text, 3)] for text in set(texts)}
    with ThreadPoolExecutor(16) as visitors:
        answers = list(visitors.map(lambda text: get(address, "/api/search", q=text, index="second", k=3), texts))
    for text, (status, found) in zip(texts, answers, strict=True):
        assert status == 200
        assert [each["number"] for each in found["results"]] == expected[text]


def test_a_picture_finds_itself(address):
    status, picture = get(address, "/api/items/7/picture", index="first", size="large")
    assert status == 200
    opened = Image.open(io.BytesIO(picture))
    assert opened.format == "JPEG"
    status, found = get(address, "/api/search/picture", method="POST", body=png(opened), index="first", k=3)
    assert status == 200
    assert found["results"][0]["number"] == 7
    status, item = get(address, "/api/items/7", index="first", k=5)
    assert len(item["neighbours"]) == 5
    assert 7 not in [each["number"] for each in item["neighbours"]]
    assert item["captions"]
    assert not item["attention"]


def rank_of(searcher, text, number):
    return next(hit.rank for hit in searcher.words(text, len(searcher.index.items)) if hit.number == number)


def test_models_are_compared(address, folder):
    _, found = get(address, "/api/compare", q="a red square", index=["first", "second"], k=5)
    searchers = [Searcher.open(folder / name) for name in ("first", "second")]
    for column, searcher in zip(found["columns"], searchers, strict=True):
        assert [each["number"] for each in column] == [hit.number for hit in searcher.words("a red square", 5)]
        for each in column:
            assert each["ranks"] == [rank_of(one, "a red square", each["number"]) for one in searchers]
    status, moved = get(address, "/api/compare/differences", index=["first", "second"])
    assert status == 200
    ratios = [max(each["ranks"]) / min(each["ranks"]) for each in moved]
    assert ratios == sorted(ratios, reverse=True)
    for each in moved[:3]:
        assert each["ranks"] == [rank_of(one, each["query"], each["number"]) for one in searchers]


def test_regions_of_words(address):
    status, shown = get(address, "/api/items/2/attention", q="a red square", index="scan")
    assert status == 200
    assert shown["side"] == 9
    assert get(address, "/api/items/2", index="scan")[1]["attention"]
    status, told = get(address, "/api/items/2/attention", q="a red square", index="first")
    assert status == 422
    assert "no cross attention" in told["error"]


def test_runs_are_shown_as_they_stand(address, folder):
    status, found = get(address, "/api/runs")
    assert status == 200
    assert found[0]["finished"]
    assert found[0]["metrics"]["rsum"] > 0
    _, curves = get(address, f"/api/runs/{found[0]['name']}")
    assert curves["validation"][-1]["epoch"] == found[0]["epochs"]
    assert curves["counts"][0]["i2t"]["effective"] > 0
    unfinished = folder / "runs" / "20260101_made_heads_nt-xent_s7_0123456789"
    unfinished.mkdir()
    settings = {"data": "made", "model": "heads", "objective": "nt-xent", "seed": 7, "epochs": 9}
    (unfinished / "settings.json").write_text(json.dumps(settings))
    line = {"epoch": 1, "step": 5, "split": "validation", "rsum": 12.5}
    (unfinished / "metrics.jsonl").write_text(json.dumps(line) + '\n{"epoch": 2, "step": 10, "sp')  # being written
    shown = next(each for each in get(address, "/api/runs")[1] if each["name"] == unfinished.name)
    assert (shown["finished"], shown["epoch"], shown["metrics"]) == (False, 1, {"rsum": 12.5})
    more = json.dumps(line) + "\n" + json.dumps(line | {"epoch": 2, "rsum": 20.0}) + "\n"
    (unfinished / "metrics.jsonl").write_text(more)
    assert [each["rsum"] for each in get(address, f"/api/runs/{unfinished.name}")[1]["validation"]] == [12.5, 20.0]


def test_the_playground_is_the_catalogue(address):
    status, found = get(address, "/api/diagram", objective="cir/sig-ms", tau=12, relative=0.2)
    assert status == 200
    assert eval(found["python"]) == tercet.objective("cir/sig-ms", tau=12.0)
    expected = plane(tercet.objective("cir/sig-ms", tau=12.0), points=len(found["axis"]), relative=0.2)
    assert np.allclose(found["pull"], expected.pull, atol=1e-4)
    assert np.allclose(found["triplet_weight"], expected.triplet_weight, atol=1e-4)
    for each in get(address, "/api/objectives")[1]["objectives"]:
        defaults = {control["name"]: json.dumps(control["default"]).strip('"') for control in each["controls"]}
        assert get(address, "/api/diagram", objective=each["name"], **defaults)[0] == 200, each["name"]
        status, batch = get(address, "/api/gradient", objective=each["name"], **defaults)
        assert status == 200
        assert len(batch["gradient"]) == len(batch["members"]) > 2
    _, batch = get(address, "/api/gradient", objective="nt-xent", temperature=0.05)
    S = np.array(batch["similarity"])
    G = tercet.objective("nt-xent", temperature=0.05).pair_gradient(torch.from_numpy(S))
    assert np.allclose(batch["gradient"], G, atol=2e-3)  # similarities came rounded


NOISE = Image.fromarray(np.random.default_rng(0).integers(256, size=(40, 40, 3), dtype=np.uint8))


def bomb():
    """A PNG of 40,000 x 40,000 pixels in a few kilobytes."""

    def chunk(kind, data):
        return len(data).to_bytes(4, "big") + kind + data + zlib.crc32(kind + data).to_bytes(4, "big")

    head = (40_000).to_bytes(4, "big") * 2 + bytes([8, 2, 0, 0, 0])
    body = zlib.compress(bytes(10_000_000))
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", body) + chunk(b"IEND", b"")


HOSTILE = [
    ("GET", "/api/search?q=%ff%fe", None, 400, "not UTF-8"),
    ("GET", "/api/search?q=" + "x" * 1001, None, 422, "at most 1,000"),
    ("GET", "/api/search?q=dogs&k=10000", None, 422, "from 1 to 1,000 results"),
    ("GET", "/api/search?q=dogs&k=0", None, 422, "from 1 to 1,000 results"),
    ("GET", "/api/search?q=dogs&k=many", None, 422, "k: "),
    ("GET", "/api/search?q=%20", None, 422, "empty query"),
    ("GET", "/api/search", None, 422, "q: "),
    ("GET", "/api/search?q=dogs&index=../../etc", None, 404, "no index"),
    ("GET", "/api/items/99999/picture", None, 404, "no picture 99999"),
    ("GET", "/api/items/-1/picture", None, 404, "no picture -1"),
    ("GET", "/api/items/..%2f..%2fetc%2fpasswd/picture", None, 404, ""),
    ("GET", "/page/..%2f..%2fcli.py", None, 404, ""),
    ("GET", "/page/../../cli.py", None, 404, ""),
    ("GET", "/page/__init__.py", None, 404, "no such file"),
    ("GET", "/comparisons/..%2f..%2f/report.html", None, 404, ""),
    ("GET", "/comparisons/comparison_x/../../../settings.json", None, 404, ""),
    ("GET", "/api/runs/..%2f..%2fetc", None, 404, ""),
    ("GET", "/api/diagram?objective=mine.py:fn", None, 422, "unknown objective"),
    ("GET", "/api/diagram?objective=nt-xent&temperature=-1", None, 422, "temperature"),
    ("GET", "/api/diagram?objective=nt-xent&temperature=NaN", None, 422, "temperature"),
    ("GET", "/api/diagram?objective=nt-xent&nothing=1", None, 422, "no setting"),
    ("GET", "/api/diagram?objective=cir/con&tau=" + "1" * 400, None, 422, "400 signs"),
    ("GET", "/api/gradient?objective=cir/con&tau=" + "[" * 3000, None, 422, "3,000 signs"),
    ("GET", "/api/items/0/picture?checksum=another", None, 404, "another one now"),
    ("GET", "/api/diagram?objective=aoq&mined=inf", None, 422, "mined"),
    ("GET", "/api/compare?q=dogs&index=first", None, 422, "from 2 to 3"),
    ("GET", "/nothing", None, 404, ""),
    ("POST", "/api/search", b"", 405, ""),
    ("POST", "/api/search/picture", b"", 422, "no picture in the request"),
    ("POST", "/api/search/picture", b"no picture at all", 422, "not an image"),
    ("POST", "/api/search/picture", png(NOISE)[:900], 422, "damaged"),
    ("POST", "/api/search/picture", b"x" * (21 << 20), 413, "at most 20 MB"),
    ("POST", "/api/search/picture", "bomb", 422, "pixels"),
]


@pytest.mark.parametrize(("method", "path", "body", "status", "why"), HOSTILE, ids=range(len(HOSTILE)))
def test_hostile_visitors_are_told_and_the_server_lives(address, method, path, body, status, why):
    found, told = get(address, path, method=method, body=bomb() if body == "bomb" else body)
    assert found == status
    assert why in told["error"]
    assert "\n" not in told["error"]
    assert get(address, "/api/search", q="a star", k=1)[0] == 200


def test_a_hundred_broken_requests_at_once(address):
    split = urlsplit(address)

    def broken(n):
        with socket.create_connection((split.hostname, split.port), timeout=10) as raw:
            raw.sendall(
                [b"\xff\xfe\x00" * 50, b"GET / HTTP/9.9\r\n\r\n", b"POST /api/search/picture HTTP/1.1\r\n"][n % 3]
            )

    with ThreadPoolExecutor(20) as visitors:
        list(visitors.map(broken, range(100)))
    assert get(address, "/api/search", q="a star", k=1)[0] == 200


def test_only_the_file_that_was_indexed_is_shown(address, folder):
    assert get(address, "/api/items/0/picture", index="photos_index")[0] == 200
    photo = folder / "photos" / "p01.png"
    elsewhere = folder / "secret.png"
    Image.new("RGB", (9, 9), "red").save(elsewhere)
    photo.unlink()
    photo.symlink_to(elsewhere)
    status, told = get(address, "/api/items/1/picture", index="photos_index")
    assert status == 410
    assert "changed since" in told["error"]
    (folder / "photos" / "p02.png").unlink()
    assert get(address, "/api/items/2/picture", index="photos_index")[0] == 410


def test_headers_and_description(address):
    split = urlsplit(address)
    connection = HTTPConnection(split.hostname, split.port)
    connection.request("GET", "/")
    answer = connection.getresponse()
    assert "default-src 'self'" in answer.headers["content-security-policy"]
    assert answer.headers["x-content-type-options"] == "nosniff"
    content = answer.read()
    connection.close()
    assert b"http://" not in content.replace(b"http://www.w3.org", b"")
    _, described = get(address, "/openapi.json")
    assert {"/api/search", "/api/search/picture", "/api/diagram"} <= set(described["paths"])
    assert get(address, "/docs")[0] == 404  # it would load scripts from elsewhere
    assert get(address, "/", headers={"Host": "evil.example"})[0] == 421


@pytest.mark.parametrize("token", ["sesame", 'a b;c&d#e"f%41+[bold]x', "Ünïcode"])
def test_a_token_is_asked_for(folder, token):
    with serving(folder / "first", "--token", token, wait=False) as (link, _):
        address = link.split("?")[0]
        assert get(address, "/")[0] == 401
        assert get(address, "/api/about", headers={"Cookie": 'tercet_token=wrong; odd="a;b'})[0] == 401
        assert get(address, "/api/about", headers={"Authorization": "Bearer wrong"})[0] == 401
        bearer = f"Bearer {token}".encode()
        assert get(address, "/api/about", headers={"Authorization": bearer})[0] == 200
        connection = HTTPConnection(urlsplit(link).hostname, urlsplit(link).port)
        connection.request("GET", f"/?{urlsplit(link).query}")  # as printed
        answer = connection.getresponse()
        assert answer.status == 303
        cookie = answer.headers["set-cookie"].split(";")[0]
        connection.close()
        assert get(address, "/api/about", headers={"Cookie": cookie})[0] == 200


def test_the_page_does_not_wait_for_models_and_the_end_is_graceful(folder):
    with serving(folder / "scan", wait=False) as (address, process):
        assert get(address, "/")[0] == 200  # no model is open yet
        status, told = get(address, "/api/search", q="a star")
        assert status == 503 or told["results"]
        for _ in range(600):
            if get(address, "/api/search", q="a star")[0] == 200:
                break
            time.sleep(0.1)
        with ThreadPoolExecutor(8) as visitors:
            asked = [visitors.submit(get, address, "/api/search", q=f"a star {n}") for n in range(8)]
            time.sleep(0.05)
            process.send_signal(signal.SIGINT)
            statuses = []
            for each in asked:
                try:
                    statuses.append(each.result()[0])
                except OSError:
                    continue  # it came after the door was closed
        assert set(statuses) <= {200, 503}
        assert process.wait(timeout=20) == 0
        assert "stopped" in process.stdout.read()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("nowhere",), "no index there"),
        (("--runs", "nowhere"), "no such folder of runs"),
        (("--port", "99999"), "--port must be"),
        (("--token", ""), "--token is empty"),
        (("--host", "no.such.host.invalid"), "cannot listen"),
    ],
)
def test_mistakes_get_one_line(arguments, message, tmp_path):
    command = [sys.executable, "-m", "tercet.cli", "serve", *arguments]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, env=os.environ | {"NO_COLOR": "1"})
    assert done.returncode == 2
    assert message in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1


def test_an_index_that_cannot_be_opened_closes_no_other(folder):
    broken = folder / "broken"
    broken.mkdir(exist_ok=True)
    (broken / "index.json").write_text("{}")
    with serving(folder / "first", broken) as (address, _):
        states = {each["name"]: each["state"] for each in get(address, "/api/about")[1]["indexes"]}
        assert states == {"first": "ready", "broken": "failed"}
        status, told = get(address, "/api/search", q="a star", index="broken")
        assert status == 500
        assert "could not be opened" in told["error"]
        assert str(folder) not in told["error"]


def test_broken_runs_hide_no_others(folder, address):
    before = len(get(address, "/api/runs")[1])
    for number, (settings, line) in enumerate(
        [
            ({"seed": None, "epochs": None}, {"epoch": None, "split": "validation", "rsum": None}),
            ({"seed": "x"}, {}),
            ({}, {"cocos": {"i2t": None}, "step": None}),
        ]
    ):
        run = folder / "runs" / f"20260101_odd_heads_nt-xent_s{number}_012345678{number}"
        run.mkdir()
        (run / "settings.json").write_text(json.dumps(settings))
        (run / "metrics.jsonl").write_text(json.dumps(line) + "\n[1]\nnothing\n")
        assert get(address, f"/api/runs/{run.name}")[0] == 200
    status, found = get(address, "/api/runs")
    assert status == 200
    assert len(found) == before + 2


def test_pictures_may_be_kept_only_by_their_checksum(address):
    _, found = get(address, "/api/search", q="a star", k=1)
    split, best = urlsplit(address), found["results"][0]
    for given, kept in (({"checksum": best["checksum"]}, True), ({}, False)):
        connection = HTTPConnection(split.hostname, split.port)
        connection.request("GET", f"/api/items/{best['number']}/picture?{urlencode(given)}")
        answer = connection.getresponse()
        answer.read()
        connection.close()
        assert ("immutable" in answer.headers["cache-control"]) == kept


def test_senders_who_leave_are_no_news(folder):
    with serving(folder / "first") as (address, process):
        split = urlsplit(address)
        for _ in range(3):
            with socket.create_connection((split.hostname, split.port)) as raw:
                raw.sendall(b"POST /api/search/picture HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9999\r\n\r\nabc")
                time.sleep(0.1)
        with socket.create_connection((split.hostname, split.port)) as raw:  # more than will ever be read
            raw.sendall(b"POST /api/search/picture HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9999999999\r\n\r\n")
            assert b" 413 " in raw.recv(4096)
        assert get(address, "/api/search", q="a star", k=1)[0] == 200
        process.send_signal(signal.SIGINT)
        process.wait(timeout=20)
        assert "Traceback" not in process.stdout.read()


@pytest.mark.slow
def test_those_who_ask_nothing_are_sent_away(address):
    split = urlsplit(address)
    silent = [socket.create_connection((split.hostname, split.port)) for _ in range(600)]
    time.sleep(12)
    assert get(address, "/api/search", q="a star", k=1)[0] == 200
    for each in silent:
        each.close()
