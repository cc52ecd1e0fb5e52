"""`tercet serve`: check the settings, bind the socket, run uvicorn."""

import ipaddress
import os
import socket
from contextlib import suppress
from pathlib import Path
from typing import Any
from urllib.parse import quote

import torch
import uvicorn
from rich.console import Console
from uvicorn.protocols.http.h11_impl import H11Protocol

from tercet.search.index import MANIFEST
from tercet.search.settings import ServeSettings
from tercet.serve.app import application
from tercet.serve.limits import FIRST_REQUEST_TIMEOUT_SECONDS, MAX_CONNECTIONS, SHUTDOWN_TIMEOUT_SECONDS
from tercet.serve.middleware import AuthMiddleware

LOOPBACK_HOSTS = ("127.0.0.1", "localhost", "::1")


def serve(settings: ServeSettings, console: Console) -> None:
    _limit_threads()
    if settings.token is not None and not settings.token.strip():
        raise ValueError("--token must not be empty")
    for folder in settings.indexes:  # before loading anything: a wrong path fails at once
        if not (folder / MANIFEST).is_file():
            raise ValueError(f"{folder}: not an index (no {MANIFEST}); create one with `tercet index`")
    runs: Path | None = settings.runs
    if not settings.runs.is_dir():
        runs = None
        if settings.runs != ServeSettings.runs:
            raise ValueError(f"--runs {settings.runs}: no such folder")
    with _bind(settings.host, settings.port) as listener:
        local_only = _is_loopback(settings.host)
        app = AuthMiddleware(
            application(list(settings.indexes), runs),
            hosts={*LOOPBACK_HOSTS, settings.host} if local_only else None,
            token=settings.token,
        )
        host = f"[{settings.host}]" if ":" in settings.host else settings.host
        url = f"http://{host}:{listener.getsockname()[1]}/"
        if settings.token is not None:
            url += f"?token={quote(settings.token, safe='')}"
        for line in (url, _summary(settings, runs)):
            console.print(line, highlight=False, markup=False, soft_wrap=True)
        if not local_only and settings.token is None:
            console.print(
                "Warning: anyone who can reach this machine can see these images; set --token to require a token",
                style="yellow",
                soft_wrap=True,
            )
        config = uvicorn.Config(
            app,
            http=FirstRequestTimeout,
            log_level="warning",
            access_log=False,
            limit_concurrency=MAX_CONNECTIONS,
            timeout_graceful_shutdown=SHUTDOWN_TIMEOUT_SECONDS,
            server_header=False,
        )
        with suppress(KeyboardInterrupt):  # raised again by uvicorn after its graceful shutdown
            uvicorn.Server(config).run(sockets=[listener])
    console.print("Server stopped.")


class FirstRequestTimeout(H11Protocol):
    """Closes connections that send no request: otherwise a few clients could occupy all connections."""

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self.loop.call_later(FIRST_REQUEST_TIMEOUT_SECONDS, self._close_if_silent)

    def _close_if_silent(self) -> None:
        if self.cycle is None and not self.transport.is_closing():
            self.transport.close()


def _limit_threads() -> None:
    """Compute with half of the cores: queries are small, and more threads than free cores slow each other down."""
    threads = max(1, (os.cpu_count() or 1) // 2)
    torch.set_num_threads(threads)
    with suppress(ImportError):  # opening an index reports that faiss is missing
        import faiss

        faiss.omp_set_num_threads(threads)


def _bind(host: str, port: int) -> socket.socket:
    if not 0 <= port <= 65535:
        raise ValueError(f"--port must be from 0 (a free port) to 65535, got {port}")
    try:
        family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        return socket.create_server(address[:2], family=family, backlog=1024)
    except OSError as error:
        raise ValueError(
            f"cannot listen on {host}, port {port}: {error.strerror}; --port 0 picks a free port"
        ) from error


def _is_loopback(host: str) -> bool:
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _summary(settings: ServeSettings, runs: Path | None) -> str:
    indexes = ", ".join(str(folder) for folder in settings.indexes) or "none"
    return f"Indexes: {indexes}. Runs: {'none' if runs is None else runs}. Press Ctrl-C to stop."
