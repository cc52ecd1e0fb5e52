"""ASGI middleware: Host check, UTF-8 check, token authentication, security headers."""

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
SECURITY_HEADERS = [
    # Nothing is loaded from other sites. Inline styles are allowed: reports of comparisons contain them.
    (
        b"content-security-policy",
        b"default-src 'self'; img-src 'self' blob: data:; style-src 'self' 'unsafe-inline'; object-src 'none'; "
        b"base-uri 'none'; form-action 'self'; frame-ancestors 'none'",
    ),
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
]


class AuthMiddleware:
    """Wraps the application.

    `hosts` are the accepted Host headers (None: any), which prevents DNS rebinding: a page of another site whose name
    resolves to this machine is rejected. With a `token`, clients send it in the link, a bearer header or a cookie.
    """

    def __init__(self, app: Any, *, hosts: Collection[str] | None, token: str | None) -> None:
        self.app, self.hosts, self.token = app, hosts, token

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}
        rejection = self._rejection(scope, headers)
        if rejection is not None:
            await _send_response(send, *rejection)
        elif self.token is not None and scope["path"] == "/" and "token" in _query_params(scope):
            # The link with the token was opened: store it in a cookie and remove it from the address.
            cookie = f"{COOKIE}={_cookie_value(self.token)}; HttpOnly; SameSite=Strict; Path=/"
            await _send_response(send, 303, "", [(b"location", b"/"), (b"set-cookie", cookie.encode())])
        else:
            await self.app(scope, receive, _with_security_headers(send))

    def _rejection(self, scope: Scope, headers: dict[str, str]) -> tuple[int, str] | None:
        """Return (status, message) if the request is rejected."""
        if self.hosts is not None and _without_port(headers.get("host", "")).lower().rstrip(".") not in self.hosts:
            return 421, f"the Host header must be one of {', '.join(sorted(self.hosts))}"
        for encoded in (scope["query_string"], scope.get("raw_path", b"")):
            try:
                unquote_to_bytes(encoded.replace(b"+", b" ")).decode("utf-8")
            except UnicodeDecodeError:
                return 400, "the URL is not UTF-8"
        if self.token is not None and not _is_authenticated(self.token, scope, headers):
            return 401, "token required: open the link that the server printed, or send Authorization: Bearer TOKEN"
        return None


def _is_authenticated(token: str, scope: Scope, headers: dict[str, str]) -> bool:
    """Whether the token is in the header, the link, or the cookie set by the link."""
    bearer = headers.get("authorization", "").removeprefix("Bearer ").encode("latin-1")
    in_link = [value.encode() for value in _query_params(scope).get("token", [])]
    cookies = SimpleCookie()
    with suppress(Exception):  # cookies of other servers on this host may be malformed
        cookies.load(headers.get("cookie", ""))
    in_cookie = cookies[COOKIE].value if COOKIE in cookies else ""
    matches = [hmac.compare_digest(value, token.encode()) for value in (bearer, *in_link)]
    return any([*matches, hmac.compare_digest(in_cookie.encode(), _cookie_value(token).encode())])


def _cookie_value(token: str) -> str:
    """Return a hash: the token itself may contain characters that cookies cannot."""
    return hashlib.sha256(token.encode()).hexdigest()


def _query_params(scope: Scope) -> dict[str, list[str]]:
    return parse_qs(scope["query_string"].decode("utf-8", "replace"))


def _without_port(host: str) -> str:
    if host.startswith("["):
        return host[1:].partition("]")[0]
    return host.partition(":")[0]


def _with_security_headers(send: Send) -> Send:
    async def send_with_headers(message: MutableMapping[str, Any]) -> None:
        if message["type"] == "http.response.start":
            message = {**message, "headers": [*message.get("headers", []), *SECURITY_HEADERS]}
        await send(message)

    return send_with_headers


async def _send_response(send: Send, status: int, error: str, headers: list[tuple[bytes, bytes]] | None = None) -> None:
    content_type = (b"content-type", b"application/json")
    all_headers = [content_type, *(headers or []), *SECURITY_HEADERS]
    await send({"type": "http.response.start", "status": status, "headers": all_headers})
    await send({"type": "http.response.body", "body": json.dumps({"error": error}).encode()})
