"""Before any answer: who asks, by which name, in which letters; and what every answer tells a browser."""

import hashlib
import hmac
import json
from collections.abc import Awaitable, Callable, Collection, MutableMapping
from contextlib import suppress
from http.cookies import SimpleCookie
from typing import Any
from urllib.parse import parse_qs, unquote_to_bytes

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]

COOKIE = "tercet_token"
HEADERS = [
    # Nothing from elsewhere. Styles may stand in the page: reports of comparisons carry theirs.
    (
        b"content-security-policy",
        b"default-src 'self'; img-src 'self' blob: data:; style-src 'self' 'unsafe-inline'; object-src 'none'; "
        b"base-uri 'none'; form-action 'self'; frame-ancestors 'none'",
    ),
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
]


class Gate:
    """Around the application.

    `hosts` are the names under which the server may be called (any, if None): a page of somewhere else that lets its
    name point to this machine is kept out. With a `token`, whoever asks shows it, once in the link or with every call.
    """

    def __init__(self, app: Any, *, hosts: Collection[str] | None, token: str | None) -> None:
        self.app, self.hosts, self.token = app, hosts, token

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}
        refusal = self._refusal(scope, headers)
        if refusal is not None:
            await _answer(send, *refusal)
        elif self.token is not None and scope["path"] == "/" and "token" in _given(scope):
            cookie = f"{COOKIE}={_in_cookie(self.token)}; HttpOnly; SameSite=Strict; Path=/"
            await _answer(send, 303, "", [(b"location", b"/"), (b"set-cookie", cookie.encode())])
        else:
            await self.app(scope, receive, _with_headers(send))

    def _refusal(self, scope: Scope, headers: dict[str, str]) -> tuple[int, str] | None:
        if self.hosts is not None and _name_of(headers.get("host", "")).lower().rstrip(".") not in self.hosts:
            return 421, f"this server answers to {', '.join(sorted(self.hosts))} only"
        for part in (scope["query_string"], scope.get("raw_path", b"")):
            try:
                unquote_to_bytes(part.replace(b"+", b" ")).decode("utf-8")
            except UnicodeDecodeError:
                return 400, "the address is not UTF-8"
        if self.token is not None and not _knows(self.token, scope, headers):
            return 401, "this server wants a token: open the link that it printed, or send Authorization: Bearer TOKEN"
        return None


def _knows(token: str, scope: Scope, headers: dict[str, str]) -> bool:
    """By a header, the link, or the cookie that the link left."""
    bearer = headers.get("authorization", "").removeprefix("Bearer ").encode("latin-1")
    in_link = [each.encode() for each in _given(scope).get("token", [])]
    cookies = SimpleCookie()
    with suppress(Exception):  # whatever a cookie of somewhere else may hold
        cookies.load(headers.get("cookie", ""))
    in_cookie = cookies[COOKIE].value if COOKIE in cookies else ""
    shown = [hmac.compare_digest(each, token.encode()) for each in (bearer, *in_link)]
    return any([*shown, hmac.compare_digest(in_cookie.encode(), _in_cookie(token).encode())])


def _in_cookie(token: str) -> str:
    """Not the token itself, which may have any signs."""
    return hashlib.sha256(token.encode()).hexdigest()


def _given(scope: Scope) -> dict[str, list[str]]:
    return parse_qs(scope["query_string"].decode("utf-8", "replace"))


def _name_of(host: str) -> str:
    """Without the port."""
    if host.startswith("["):
        return host[1:].partition("]")[0]
    return host.partition(":")[0]


def _with_headers(send: Send) -> Send:
    async def sends(message: MutableMapping[str, Any]) -> None:
        if message["type"] == "http.response.start":
            message = {**message, "headers": [*message.get("headers", []), *HEADERS]}
        await send(message)

    return sends


async def _answer(send: Send, status: int, why: str, headers: list[tuple[bytes, bytes]] | None = None) -> None:
    kind = (b"content-type", b"application/json")
    start = {"type": "http.response.start", "status": status, "headers": [kind, *(headers or []), *HEADERS]}
    await send(start)
    await send({"type": "http.response.body", "body": json.dumps({"error": why}).encode()})
