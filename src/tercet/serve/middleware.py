"""ASGI middleware: security headers, Host check, cross-site check, UTF-8 check, token authentication."""

import hashlib
import hmac
import ipaddress
import re
from collections.abc import Collection
from contextlib import suppress
from urllib.parse import unquote_to_bytes

from cachetools import TTLCache
from fastapi.security.utils import get_authorization_scheme_param
from h11 import LocalProtocolError
from starlette.datastructures import MutableHeaders
from starlette.requests import Request
from starlette.responses import JSONResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from tercet.serve.limits import (
    MAX_REMEMBERED_NETWORKS,
    MAX_WRONG_TOKENS,
    WRONG_TOKEN_PAUSE_SECONDS,
)

COOKIE = "tercet_token"
HOST = re.compile(r"(?P<name>[\w.-]+|\[[0-9a-f:.]+\])(:\d{1,5})?", flags=re.ASCII | re.IGNORECASE)
SECURITY_HEADERS = {
    # Nothing is loaded from other sites. Inline styles are allowed: reports of comparisons contain them.
    "content-security-policy": "default-src 'self'; img-src 'self' blob: data:; style-src 'self' 'unsafe-inline'; "
    "object-src 'none'; base-uri 'none'; form-action 'self'; frame-ancestors 'none'",
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
}


class SecurityHeadersMiddleware:
    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message).update(SECURITY_HEADERS)
            with suppress(LocalProtocolError):  # the client broke off its request: there is no one to answer
                await send(message)

        await self.app(scope, receive, send_with_headers)


class AccessMiddleware:
    """Answers requests that are not allowed, before the application sees them.

    `hosts` are the names that are accepted in the Host header, besides addresses (None: any). This prevents DNS
    rebinding: a page of another site whose name resolves to this machine is rejected. With a `token`, clients send it
    in the link, a bearer header or a cookie; after MAX_WRONG_TOKENS different wrong ones, those of the same network are
    not compared for a while.
    Starlette's TrustedHostMiddleware is not used: its answer is plain text, and the API's errors are JSON.
    """

    def __init__(self, app: ASGIApp, *, hosts: Collection[str] | None = None, token: str | None = None) -> None:
        self.app, self.hosts, self.token = app, hosts, token
        self._wrong: TTLCache[str, frozenset[str]] = TTLCache(MAX_REMEMBERED_NETWORKS, WRONG_TOKEN_PAUSE_SECONDS)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        answer = self._answer(Request(scope)) if scope["type"] == "http" else None
        await (answer or self.app)(scope, receive, send)

    def _answer(self, request: Request) -> Response | None:
        """Return None if the request is for the application."""
        if self.hosts is not None and not _is_accepted(_host_name(request), self.hosts):
            known = ", ".join(sorted(self.hosts))
            return _error(421, f"the Host header must be an address or one of {known}; --host-names adds others")
        if _is_cross_site(request):
            return _error(403, "requests from pages of other sites are not allowed")
        if not _is_utf8(request):
            return _error(400, "the URL is not UTF-8")
        return None if self.token is None else self._authenticate(request, self.token)

    def _authenticate(self, request: Request, token: str) -> Response | None:
        given, expected = _given_tokens(request), _hashed(token.encode())
        network = network_of_client(request)
        wrong = self._wrong.get(network, frozenset())
        if given and len(wrong) >= MAX_WRONG_TOKENS:
            return _error(429, "too many wrong tokens", {"retry-after": str(WRONG_TOKEN_PAUSE_SECONDS)})
        if not any(hmac.compare_digest(value.encode(), expected.encode()) for value in given):
            if given:  # only different ones count: an open page with the cookie of an earlier token does not guess
                self._wrong[network] = wrong.union(given)
            return _error(
                401, "token required: open the link that the server printed, or send Authorization: Bearer TOKEN"
            )
        if request.scope["path"] == "/" and "token" in request.query_params:
            # The link with the token was opened: store it in a cookie and remove it from the address.
            answer = RedirectResponse("/", 303)
            answer.set_cookie(COOKIE, expected, httponly=True, samesite="strict")
            return answer
        return None


def network_of(address: str) -> str:
    """Return an IPv4 address itself, and the /64 network of an IPv6 address: one client has all of its addresses."""
    with suppress(ValueError):
        parsed = ipaddress.ip_address(address.partition("%")[0])
        if isinstance(parsed, ipaddress.IPv6Address):
            return str(parsed.ipv4_mapped or ipaddress.ip_network((parsed, 64), strict=False))
    return address


def network_of_client(request: Request) -> str:
    return network_of(request.client.host if request.client else "")


def _error(status: int, message: str, headers: dict[str, str] | None = None) -> JSONResponse:
    return JSONResponse({"error": message}, status, headers)


def _host_name(request: Request) -> str | None:
    """Return the name in the Host header, without port; None if the header is malformed."""
    match = HOST.fullmatch(request.headers.get("host", ""))
    return match["name"].strip("[]").lower().rstrip(".") if match else None


def _is_accepted(host: str | None, names: Collection[str]) -> bool:
    """An address in place of a name cannot come from DNS."""
    with suppress(ValueError):
        return bool(ipaddress.ip_address(host or ""))
    return host in names


def _is_cross_site(request: Request) -> bool:
    """Whether a page of another site sent the request. Links on other sites may be followed.

    Browsers send Sec-Fetch-Site only to this machine and over HTTPS. Origin is sent to all, but not by followed links.
    """
    site, origin = request.headers.get("sec-fetch-site"), request.headers.get("origin")
    if site is None:
        return origin is not None and origin.partition("://")[2] != request.headers.get("host")
    followed_link = request.method == "GET" and request.headers.get("sec-fetch-dest") == "document"
    return site == "cross-site" and not followed_link


def _is_utf8(request: Request) -> bool:
    """The framework would replace other bytes without an error."""
    try:
        for encoded in (request.scope["query_string"], request.scope.get("raw_path", b"")):
            unquote_to_bytes(encoded.replace(b"+", b" ")).decode("utf-8")
    except UnicodeDecodeError:
        return False
    return True


def _given_tokens(request: Request) -> list[str]:
    """Return the hashes of the tokens in the link and the header, and that in the cookie set by the link."""
    given = [_hashed(request.query_params["token"].encode())] if "token" in request.query_params else []
    scheme, bearer = get_authorization_scheme_param(request.headers.get("authorization"))
    if scheme.lower() == "bearer":
        given.append(_hashed(bearer.encode("latin-1")))  # as the framework decoded it
    if COOKIE in request.cookies:
        given.append(request.cookies[COOKIE][:100])  # longer than a hash: wrong, and remembered
    return given


def _hashed(token: bytes) -> str:
    """Cookies contain a hash: the token itself may have characters that they cannot."""
    return hashlib.sha256(token).hexdigest()
