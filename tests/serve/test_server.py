"""The server as a process: responses, errors, hostile requests, and shutdown."""

import io
import json
import os
import shutil
import signal
import socket
import zlib
from concurrent.futures import FIRST_COMPLETED, ThreadPoolExecutor, wait
from http.client import HTTPConnection
from urllib.parse import quote, urlencode, urlsplit

import numpy as np
import pytest
import torch
from PIL import Image

import tercet
from tercet import runs
from tercet.analysis.triplet_diagram import plane
from tercet.search.searcher import Searcher
from tercet.search.settings import ServeSettings
from tercet.serve.server import accepted_hosts, access_token
from tests.checksums import flip_bit
from tests.commands import tercet as tercet_
from tests.search.small_indexes import get, model, serving, shared_index, wait_until_ready
from tests.search.small_indexes import index as new_index
from tests.search.test_index import draw
from tests.shared_runs import small_run


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("served")
    for name, given in (("first", ("vsepp", 0)), ("second", ("vsepp", 1)), ("scan", ("scan", 0))):
        shutil.copytree(shared_index(*given), folder / name)
    draw(folder / "photos", [f"p{n:02d}" for n in range(5)])
    new_index(folder, "photos_index", model("vsepp"), folder / "photos")
    shutil.copytree(small_run(), folder / "runs" / small_run().name)
    (folder / "broken").mkdir()
    (folder / "broken" / "index.json").write_text("{}")
    return folder


@pytest.fixture(scope="module")
def address(folder):
    indexes = [folder / name for name in ("first", "second", "scan", "photos_index", "broken")]
    with serving(*indexes, "--runs", folder / "runs") as (address, _):
        yield address


def png(image):
    content = io.BytesIO()
    image.save(content, format="PNG")
    return content.getvalue()


def test_text_search_agrees_with_the_searcher(address, folder):
    status, response = get(address, "/api/search", q="a red square", k=4)
    expected = Searcher.open(folder / "first").search_text("a red square", 4)
    assert status == 200
    assert response["index"] == "first"
    assert [hit["number"] for hit in response["results"]] == [hit.number for hit in expected]
    assert [hit["rank"] for hit in response["results"]] == [1, 2, 3, 4]
    assert np.allclose(
        [hit["similarity"] for hit in response["results"]], [hit.similarity for hit in expected], atol=1e-5
    )
    assert str(folder) not in json.dumps(response)  # no paths of this machine


def test_concurrent_queries_get_their_own_results(address, folder):
    texts = ["a red square", "a blue ring", "two things on snow", "a star"] * 8
    searcher = Searcher.open(folder / "second")
    expected = {text: [hit.number for hit in searcher.search_text(text, 3)] for text in set(texts)}
    with ThreadPoolExecutor(16) as clients:
        responses = list(clients.map(lambda text: get(address, "/api/search", q=text, index="second", k=3), texts))
    for text, (status, response) in zip(texts, responses, strict=True):
        assert status == 200
        assert [hit["number"] for hit in response["results"]] == expected[text]


def test_an_image_finds_itself(address):
    status, image = get(address, "/api/items/7/image", index="first", size="large")
    assert status == 200
    opened = Image.open(io.BytesIO(image))
    assert opened.format == "JPEG"
    status, response = get(address, "/api/search/image", method="POST", body=png(opened), index="first", k=3)
    assert status == 200
    assert response["results"][0]["number"] == 7
    status, item = get(address, "/api/items/7", index="first", k=5)
    assert len(item["neighbours"]) == 5
    assert 7 not in [hit["number"] for hit in item["neighbours"]]
    assert item["captions"]
    assert not item["attention"]


def rank_of(searcher, text, number):
    return next(hit.rank for hit in searcher.search_text(text, len(searcher.index.items)) if hit.number == number)


def test_models_are_compared(address, folder):
    _, response = get(address, "/api/compare", q="a red square", index=["first", "second"], k=5)
    searchers = [Searcher.open(folder / name) for name in ("first", "second")]
    for column, searcher in zip(response["columns"], searchers, strict=True):
        assert [hit["number"] for hit in column] == [hit.number for hit in searcher.search_text("a red square", 5)]
        for hit in column:
            assert hit["ranks"] == [rank_of(each, "a red square", hit["number"]) for each in searchers]
    status, differences = get(address, "/api/compare/differences", index=["first", "second"])
    assert status == 200
    ratios = [max(difference["ranks"]) / min(difference["ranks"]) for difference in differences]
    assert ratios == sorted(ratios, reverse=True)
    for difference in differences[:3]:
        expected = [rank_of(searcher, difference["query"], difference["number"]) for searcher in searchers]
        assert difference["ranks"] == expected


def test_attention(address):
    status, result = get(address, "/api/items/2/attention", q="a red square", index="scan")
    assert status == 200
    assert result["side"] == 9
    assert get(address, "/api/items/2", index="scan")[1]["attention"]
    status, body = get(address, "/api/items/2/attention", q="a red square", index="first")
    assert status == 422
    assert "no cross attention" in body["error"]


def test_finished_and_unfinished_runs_are_listed(address, folder):
    status, runs = get(address, "/api/runs")
    assert status == 200
    assert runs[0]["finished"]
    assert runs[0]["metrics"]["rsum"] > 0
    _, curves = get(address, f"/api/runs/{runs[0]['name']}")
    assert curves["validation"][-1]["epoch"] == runs[0]["epochs"]
    assert curves["counts"][0]["i2t"]["effective"] > 0
    unfinished = folder / "runs" / "20260101_made_heads_nt-xent_s7_0123456789"
    unfinished.mkdir()
    settings = {"data": "made", "model": "heads", "objective": "nt-xent", "seed": 7, "epochs": 9}
    (unfinished / "settings.json").write_text(json.dumps(settings))
    line = {"epoch": 1, "step": 5, "split": "validation", "rsum": 12.5}
    (unfinished / "metrics.jsonl").write_text(json.dumps(line) + '\n{"epoch": 2, "step": 10, "sp')  # being written
    info = next(run for run in get(address, "/api/runs")[1] if run["name"] == unfinished.name)
    assert (info["finished"], info["epoch"], info["metrics"]) == (False, 1, {"rsum": 12.5})
    more = json.dumps(line) + "\n" + json.dumps(line | {"epoch": 2, "rsum": 20.0}) + "\n"
    (unfinished / "metrics.jsonl").write_text(more)
    assert [line["rsum"] for line in get(address, f"/api/runs/{unfinished.name}")[1]["validation"]] == [12.5, 20.0]


def test_the_playground_agrees_with_the_objectives(address):
    status, diagram = get(address, "/api/diagram", objective="cir/sig-ms", tau=12, relative=0.2)
    assert status == 200
    assert eval(diagram["python"]) == tercet.objective("cir/sig-ms", tau=12.0)
    expected = plane(tercet.objective("cir/sig-ms", tau=12.0), points=len(diagram["axis"]), relative=0.2)
    assert np.allclose(diagram["pull"], expected.pull, atol=1e-4)
    assert np.allclose(diagram["triplet_weight"], expected.triplet_weight, atol=1e-4)
    for info in get(address, "/api/objectives")[1]["objectives"]:
        defaults = {control["name"]: json.dumps(control["default"]).strip('"') for control in info["controls"]}
        assert get(address, "/api/diagram", objective=info["name"], **defaults)[0] == 200, info["name"]
        status, batch = get(address, "/api/gradient", objective=info["name"], **defaults)
        assert status == 200
        assert len(batch["gradient"]) == len(batch["members"]) > 2
    _, batch = get(address, "/api/gradient", objective="nt-xent", temperature=0.05)
    S = np.array(batch["similarity"])
    G = tercet.objective("nt-xent", temperature=0.05).pair_gradient(torch.from_numpy(S))
    assert np.allclose(batch["gradient"], G, atol=2e-3)  # the similarities are rounded


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
    ("GET", "/api/search?q=dogs&k=10000", None, 422, "k must be from 1 to 1,000"),
    ("GET", "/api/search?q=dogs&k=0", None, 422, "k must be from 1 to 1,000"),
    ("GET", "/api/search?q=dogs&k=many", None, 422, "k: "),
    ("GET", "/api/search?q=%20", None, 422, "empty query"),
    ("GET", "/api/search", None, 422, "q: "),
    ("GET", "/api/search?q=dogs&index=../../etc", None, 404, "no index"),
    ("GET", "/api/items/99999/image", None, 404, "no image 99999"),
    ("GET", "/api/items/-1/image", None, 404, "no image -1"),
    ("GET", "/api/items/..%2f..%2fetc%2fpasswd/image", None, 404, ""),
    ("GET", "/page/..%2f..%2fruns.py", None, 404, ""),
    ("GET", "/page/../../runs.py", None, 404, ""),
    ("GET", "/page/__init__.py", None, 404, "no such file"),
    ("GET", "/comparisons/..%2f..%2f/report.html", None, 404, ""),
    ("GET", "/comparisons/comparison_x/../../../settings.json", None, 404, ""),
    ("GET", "/api/runs/..%2f..%2fetc", None, 404, ""),
    ("GET", "/api/diagram?objective=mine.py:fn", None, 422, "unknown objective"),
    ("GET", "/api/diagram?objective=nt-xent&temperature=-1", None, 422, "temperature"),
    ("GET", "/api/diagram?objective=nt-xent&temperature=NaN", None, 422, "temperature"),
    ("GET", "/api/diagram?objective=nt-xent&nothing=1", None, 422, "no setting"),
    ("GET", "/api/diagram?objective=cir/con&tau=" + "1" * 400, None, 422, "400 characters"),
    ("GET", "/api/gradient?objective=cir/con&tau=" + "[" * 3000, None, 422, "3,000 characters"),
    ("GET", "/api/items/0/image?checksum=another", None, 404, "another checksum"),
    ("GET", "/api/diagram?objective=aoq&mined=inf", None, 422, "mined"),
    ("GET", "/api/compare?q=dogs&index=first", None, 422, "from 2 to 3"),
    ("GET", "/nothing", None, 404, ""),
    ("POST", "/api/search", b"", 405, ""),
    ("POST", "/api/search/image", b"", 422, "no image in the request"),
    ("POST", "/api/search/image", b"no image at all", 422, "not an image"),
    ("POST", "/api/search/image", b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\nshowpage", 422, "not an image"),
    ("POST", "/api/search/image", png(NOISE)[:900], 422, "damaged"),
    ("POST", "/api/search/image", b"x" * (21 << 20), 413, "at most 20 MB"),
    ("POST", "/api/search/image", "bomb", 422, "pixels"),
]


@pytest.mark.parametrize(("method", "path", "body", "status", "message"), HOSTILE, ids=range(len(HOSTILE)))
def test_hostile_requests_get_an_error_and_the_server_survives(address, method, path, body, status, message):
    response_status, response = get(address, path, method=method, body=bomb() if body == "bomb" else body)
    assert response_status == status
    assert message in response["error"]
    assert "\n" not in response["error"]
    assert get(address, "/api/search", q="a star", k=1)[0] == 200


def test_a_hundred_broken_requests_at_once(address):
    split = urlsplit(address)

    def broken(n):
        with socket.create_connection((split.hostname, split.port), timeout=10) as raw:
            raw.sendall(
                [b"\xff\xfe\x00" * 50, b"GET / HTTP/9.9\r\n\r\n", b"POST /api/search/image HTTP/1.1\r\n"][n % 3]
            )

    with ThreadPoolExecutor(20) as clients:
        list(clients.map(broken, range(100)))
    assert get(address, "/api/search", q="a star", k=1)[0] == 200


def test_only_the_file_that_was_indexed_is_sent(address, folder):
    assert get(address, "/api/items/0/image", index="photos_index")[0] == 200
    photo = folder / "photos" / "p01.png"
    elsewhere = folder / "secret.png"
    Image.new("RGB", (9, 9), "red").save(elsewhere)
    photo.unlink()
    photo.symlink_to(elsewhere)
    status, body = get(address, "/api/items/1/image", index="photos_index")
    assert status == 410
    assert "changed since" in body["error"]
    (folder / "photos" / "p02.png").unlink()
    assert get(address, "/api/items/2/image", index="photos_index")[0] == 410
    (folder / "photos" / "p03.png").unlink()
    os.mkfifo(folder / "photos" / "p03.png")  # opening it would block
    assert get(address, "/api/items/3/image", index="photos_index")[0] == 410


def test_headers_and_description(address):
    split = urlsplit(address)
    connection = HTTPConnection(split.hostname, split.port)
    connection.request("GET", "/")
    response = connection.getresponse()
    assert "default-src 'self'" in response.headers["content-security-policy"]
    assert response.headers["x-content-type-options"] == "nosniff"
    content = response.read()
    connection.close()
    assert b"http://" not in content.replace(b"http://www.w3.org", b"")
    _, described = get(address, "/openapi.json")
    assert {"/api/search", "/api/search/image", "/api/diagram"} <= set(described["paths"])
    parameters = {each["name"]: each["schema"] for each in described["paths"]["/api/search"]["get"]["parameters"]}
    assert (parameters["k"]["minimum"], parameters["k"]["maximum"]) == (1, 1000)
    assert (parameters["q"]["minLength"], parameters["q"]["maxLength"]) == (1, 1000)
    parameters = {each["name"]: each["schema"] for each in described["paths"]["/api/compare"]["get"]["parameters"]}
    assert (parameters["index"]["minItems"], parameters["index"]["maxItems"]) == (2, 3)
    parameters = described["paths"]["/api/items/{number}/image"]["get"]["parameters"]
    assert parameters[0]["schema"]["minimum"] == 0
    assert {"small", "large"} == set(parameters[2]["schema"]["enum"])
    assert get(address, "/docs")[0] == 404  # it would load scripts from other sites
    assert get(address, "/", headers={"Host": "evil.example"})[0] == 421


def test_a_wrong_method_gets_the_allowed_ones(address):
    split = urlsplit(address)
    connection = HTTPConnection(split.hostname, split.port)
    connection.request("DELETE", "/api/search")
    response = connection.getresponse()
    assert (response.status, response.headers["allow"]) == (405, "GET")
    connection.close()


@pytest.mark.slow  # tests/serve/test_middleware.py has the checks themselves
@pytest.mark.parametrize("token", ['a b;c&d#e"f%41+[bold]xÜ', "sesame", 'a b;c&d#e"f%41+[bold]x', "Ünïcode"])
def test_a_token_is_required(folder, token):
    with serving(folder / "first", "--token", token, wait=False) as (link, _):
        address = link.split("?")[0]
        assert get(address, "/")[0] == 401
        assert get(address, "/api/about", headers={"Cookie": 'tercet_token=wrong; odd="a;b'})[0] == 401
        assert get(address, "/api/about", headers={"Authorization": "Bearer wrong"})[0] == 401
        bearer = f"Bearer {token}".encode()
        assert get(address, "/api/about", headers={"Authorization": bearer})[0] == 200
        connection = HTTPConnection(urlsplit(link).hostname, urlsplit(link).port)
        connection.request("GET", f"/?{urlsplit(link).query}")  # as printed
        response = connection.getresponse()
        assert response.status == 303
        cookie = response.headers["set-cookie"].split(";")[0]
        connection.close()
        assert get(address, "/api/about", headers={"Cookie": cookie})[0] == 200


@pytest.mark.slow
def test_the_page_does_not_wait_for_models_uploads_may_end_early_and_shutdown_is_graceful(folder):
    with serving(folder / "first", wait=False) as (address, process):
        assert get(address, "/")[0] == 200  # no model is loaded yet
        status, body = get(address, "/api/search", q="a star")
        assert status == 503 or body["results"]
        wait_until_ready(address)
        split = urlsplit(address)
        for _ in range(3):
            with socket.create_connection((split.hostname, split.port)) as raw:
                raw.sendall(b"POST /api/search/image HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9999\r\n\r\nabc")
                assert get(address, "/api/about")[0] == 200  # by now the server has read the upload
        with socket.create_connection((split.hostname, split.port)) as raw:  # more than the server reads
            raw.sendall(b"POST /api/search/image HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9999999999\r\n\r\n")
            assert b" 413 " in raw.recv(4096)
        assert get(address, "/api/search", q="a star", k=1)[0] == 200
        with ThreadPoolExecutor(8) as clients:
            requests = [clients.submit(get, address, "/api/search", q=f"a star {n}") for n in range(8)]
            wait(requests, return_when=FIRST_COMPLETED)
            process.send_signal(signal.SIGINT)
            statuses = []
            for request in requests:
                try:
                    statuses.append(request.result()[0])
                except OSError:
                    continue  # the server was already closed
        assert 200 in statuses
        assert set(statuses) <= {200, 503}
        assert process.wait(timeout=20) == 0
        output = process.stdout.read()
        assert "stopped" in output
        assert "Traceback" not in output


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("nowhere",), "not an index (no index.json)"),
        (("--runs", "nowhere"), "no such folder"),
        (("--port", "99999"), "--port must be"),
        (("--token", ""), "--token must not be empty"),
        (("--host", "no.such.host.invalid"), "cannot listen"),
    ],
)
def test_mistakes_get_one_line(arguments, message, tmp_path):
    done = tercet_("serve", *arguments, cwd=tmp_path)
    assert done.returncode == 2
    assert message in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1


def test_an_index_that_cannot_be_opened_does_not_affect_others(folder, address):
    states = {index["name"]: index["state"] for index in get(address, "/api/about")[1]["indexes"]}
    assert states.pop("broken") == "failed"
    assert set(states.values()) == {"ready"}
    status, body = get(address, "/api/search", q="a star", index="broken")
    assert status == 500
    assert "could not be opened" in body["error"]
    assert str(folder) not in body["error"]


def test_damaged_runs_do_not_hide_others(folder, address):
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
    status, runs = get(address, "/api/runs")
    assert status == 200
    assert len(runs) == before + 2


def test_images_are_cacheable_only_by_checksum(address):
    best = get(address, "/api/search", q="a star", k=1)[1]["results"][0]
    split = urlsplit(address)
    for params, cacheable in (({"checksum": best["checksum"]}, True), ({}, False)):
        connection = HTTPConnection(split.hostname, split.port)
        connection.request("GET", f"/api/items/{best['number']}/image?{urlencode(params)}")
        response = connection.getresponse()
        response.read()
        connection.close()
        assert ("immutable" in response.headers["cache-control"]) == cacheable


@pytest.mark.slow
def test_silent_connections_are_closed(address):
    split = urlsplit(address)
    silent = [socket.create_connection((split.hostname, split.port)) for _ in range(600)]
    for connection in silent:
        connection.settimeout(60)
        received = connection.recv(65536)  # those above the limit of one address are told
        assert not received or received.startswith(b"HTTP/1.1 503")
        connection.close()
    assert get(address, "/api/search", q="a star", k=1)[0] == 200


def test_comparisons_are_listed_whatever_their_data_is_called(address, folder):
    content = {"title": "data, heads", "verdict": "no difference", "metric": "rsum", "results": {}}
    names = [f"comparison_{data}_e36501062a" for data in ("plain", "my photos", "Fotos (ä), 100%", "a#b?c&d")]
    for name in names:
        runs.write_comparison(folder / "runs" / name, content)
        (folder / "runs" / name / "report.html").write_text("<h1>report</h1>")
    status, listed = get(address, "/api/comparisons")
    assert status == 200
    assert {info["name"] for info in listed} >= set(names)
    for name in names:
        assert get(address, f"/comparisons/{quote(name, safe='')}/report.html") == (200, b"<h1>report</h1>")
    flip_bit(folder / "runs" / names[0] / "comparison.json")
    damaged = {info["name"]: info for info in get(address, "/api/comparisons")[1]}[names[0]]
    assert "comparison.json" in damaged["verdict"]
    assert damaged["rows"] == []


def test_a_token_comes_from_a_file_or_the_environment(tmp_path, monkeypatch):
    (tmp_path / "token").write_text("from file\n")
    assert access_token(ServeSettings()) is None
    assert access_token(ServeSettings(token_file=tmp_path / "token")) == "from file"
    monkeypatch.setenv("TERCET_TOKEN", "from environment")
    assert access_token(ServeSettings()) == "from environment"
    assert access_token(ServeSettings(token="argument")) == "argument"
    with pytest.raises(ValueError, match="both given"):
        access_token(ServeSettings(token="argument", token_file=tmp_path / "token"))
    with pytest.raises(ValueError, match="nowhere: cannot read the file"):
        access_token(ServeSettings(token_file=tmp_path / "nowhere"))
    monkeypatch.setenv("TERCET_TOKEN", " ")
    with pytest.raises(ValueError, match="TERCET_TOKEN must not be empty"):
        access_token(ServeSettings())


def test_names_in_the_host_header():
    local = accepted_hosts(ServeSettings())
    assert local == {"127.0.0.1", "localhost"}
    others = accepted_hosts(ServeSettings(host="0.0.0.0", host_names=("Photos.example.",)))
    assert {"localhost", "photos.example", socket.gethostname().lower()} <= others


@pytest.mark.slow
def test_host_names_are_checked_where_others_can_connect():
    """With and without a token: a page of another site whose name resolves to this machine reads nothing."""
    with serving("--host", "0.0.0.0", "--host-names", "Photos.example", wait=False) as (link, process):
        port = urlsplit(link).port
        for host, expected in ((f"photos.example:{port}", 200), (f"127.0.0.1:{port}", 200), ("evil.example", 421)):
            assert get(f"http://127.0.0.1:{port}", "/api/about", headers={"Host": host})[0] == expected
        lines = [process.stdout.readline() for _ in range(2)]
        assert "anyone who can reach this machine can see these images" in lines[1]


@pytest.mark.slow
def test_indexes_of_other_images_are_not_compared(folder, tmp_path):
    (tmp_path / "images").mkdir()
    for name in ("red", "blue"):
        Image.new("RGB", (40, 40), name).save(tmp_path / "images" / f"{name}.png")
    other = new_index(tmp_path, "other", model("vsepp"), images=tmp_path / "images")
    with serving(folder / "first", other) as (address, _):
        for path in ("/api/compare", "/api/compare/differences"):
            given = {"q": "a red square"} if path == "/api/compare" else {}
            status, response = get(address, path, index=["first", "other"], **given)
            assert status == 422
            assert response["error"] == "first and other have no image in common: make both indexes of the same images"
