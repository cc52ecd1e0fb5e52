"""Requests that are answered before the application sees them: Host, other sites, tokens."""

import asyncio
import json

import pytest
from cachetools import TTLCache
from starlette.responses import PlainTextResponse

from tercet.serve.limits import MAX_WRONG_TOKENS
from tercet.serve.middleware import AccessMiddleware, network_of


def send(app, *, method="GET", path="/", query="", client="10.0.0.1", **headers):
    """Send one request; return its status and its body."""
    sent = []
    scope = {"type": "http", "method": method, "path": path, "raw_path": path.encode(), "client": (client, 1)}
    scope |= {"query_string": query.encode(), "scheme": "http", "server": ("localhost", 80), "root_path": ""}
    scope["headers"] = [(name.replace("_", "-").encode(), value.encode()) for name, value in headers.items()]

    async def receive():
        raise AssertionError("the body is not read")

    async def sent_message(message):
        sent.append(message)

    asyncio.run(app(scope, receive, sent_message))
    return sent[0]["status"], sent[1]["body"]


def status(app, **request):
    return send(app, **request)[0]


@pytest.fixture
def local():
    return AccessMiddleware(PlainTextResponse("ok"), hosts={"localhost", "127.0.0.1", "::1", "photos.example"})


@pytest.mark.parametrize("host", ["localhost", "LOCALHOST.:80", "127.0.0.1:8765", "[::1]", "[::1]:80", "10.1.2.3:80"])
def test_known_hosts_are_accepted(local, host):
    assert status(local, host=host) == 200


@pytest.mark.parametrize(
    "host",
    [
        "evil.example",
        "[::1].evil.com",
        "127.0.0.1:1@evil.com",
        "[localhost]evil.com:80",
        "localhost:x",
        "1.2.3.4.evil.com",
        "0x7f000001",
        "127.1",
        "[::1",
        "::1",
        "",
    ],
)
def test_other_and_malformed_hosts_are_rejected(local, host):
    code, body = send(local, host=host)
    assert code == 421
    assert "Host header" in json.loads(body)["error"]


@pytest.mark.parametrize(
    ("method", "headers", "expected"),
    [
        ("POST", {"sec_fetch_site": "cross-site", "sec_fetch_mode": "no-cors", "sec_fetch_dest": "empty"}, 403),
        ("GET", {"sec_fetch_site": "cross-site", "sec_fetch_mode": "no-cors", "sec_fetch_dest": "image"}, 403),
        ("GET", {"sec_fetch_site": "cross-site", "sec_fetch_mode": "navigate", "sec_fetch_dest": "iframe"}, 403),
        ("POST", {"sec_fetch_site": "cross-site", "sec_fetch_mode": "navigate", "sec_fetch_dest": "document"}, 403),
        ("GET", {"sec_fetch_site": "cross-site", "sec_fetch_mode": "navigate", "sec_fetch_dest": "document"}, 200),
        ("POST", {"sec_fetch_site": "same-origin", "origin": "http://localhost"}, 200),
        ("GET", {"sec_fetch_site": "none"}, 200),
        ("POST", {"origin": "http://evil.example"}, 403),
        ("POST", {"origin": "null"}, 403),
        ("POST", {"origin": "http://[localhost"}, 403),
        ("POST", {"origin": "http://localhost"}, 200),
        ("POST", {}, 200),  # not a browser
    ],
)
def test_pages_of_other_sites_may_only_link(local, method, headers, expected):
    assert status(local, method=method, host="localhost", **headers) == expected


@pytest.mark.parametrize("scheme", ["Bearer", "bearer", "BEARER"])
def test_the_scheme_of_a_token_is_case_insensitive(scheme):
    app = AccessMiddleware(PlainTextResponse("ok"), token="sesame")
    assert status(app, authorization=f"{scheme} sesame") == 200
    assert status(app, authorization="sesame") == 401
    assert status(app, authorization="Basic sesame") == 401


def test_a_malformed_host_is_no_internal_error():
    assert status(AccessMiddleware(PlainTextResponse("ok"), token="sesame"), host="[::1", query="token=sesame") == 303


def test_tokens_cannot_be_guessed_fast():
    seconds = 0.0
    app = AccessMiddleware(PlainTextResponse("ok"), token="sesame")
    app._wrong = TTLCache(10, 60, timer=lambda: seconds)
    for _ in range(3 * MAX_WRONG_TOKENS):
        assert status(app) == 401  # no token: not a guess
        assert status(app, cookie="tercet_token=earlier") == 401  # a page that was open before a restart
    for n in range(MAX_WRONG_TOKENS - 1):
        guess = [{"authorization": f"Bearer {n}"}, {"query": f"token={n}"}, {"cookie": f"tercet_token={n}"}][n % 3]
        assert status(app, **guess) == 401
    assert status(app, query="token=y") == 429
    assert status(app, authorization="Bearer sesame") == 429  # not compared: guesses find nothing
    assert status(app, authorization="Bearer sesame", client="10.0.0.2") == 200
    seconds = 61.0
    assert status(app, authorization="Bearer sesame") == 200


def test_networks():
    assert network_of("10.0.0.1") == network_of("::ffff:10.0.0.1") == "10.0.0.1"
    assert network_of("2001:db8::1") == network_of("2001:db8::2") != network_of("2001:db8:0:1::1")
    assert network_of("fe80::1%eth0") == "fe80::/64"
    assert network_of("testclient") == "testclient"
