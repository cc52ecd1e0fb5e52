"""`tercet serve`."""

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
from tercet.search.server.app import application
from tercet.search.server.gate import Gate
from tercet.search.settings import ServeSettings

LOOPBACK = ("127.0.0.1", "localhost", "::1")
AT_ONCE = 512  # connections; more are told to come again
FIRST_QUESTION = 10  # seconds within which it is to be asked


def serve(settings: ServeSettings, console: Console) -> None:
    _leave_room()
    if settings.token is not None and not settings.token.strip():
        raise ValueError("--token is empty: everybody would know it")
    for folder in settings.indexes:  # before anything is opened: a wrong path costs nothing
        if not (folder / MANIFEST).is_file():
            raise ValueError(f"{folder}: no index there; `tercet index` writes one")
    runs: Path | None = settings.runs
    if not settings.runs.is_dir():
        runs = None
        if settings.runs != ServeSettings.runs:
            raise ValueError(f"{settings.runs}: there is no such folder of runs")
    with _listening(settings.host, settings.port) as listening:
        alone = _is_loopback(settings.host)
        app = Gate(
            application(list(settings.indexes), runs),
            hosts={*LOOPBACK, settings.host} if alone else None,
            token=settings.token,
        )
        shown = f"[{settings.host}]" if ":" in settings.host else settings.host
        address = f"http://{shown}:{listening.getsockname()[1]}/"
        link = f"{address}?token={quote(settings.token, safe='')}" if settings.token is not None else address
        for line in (link, _about(settings, runs)):
            console.print(line, highlight=False, markup=False, soft_wrap=True)
        if not alone and settings.token is None:
            console.print("Whoever reaches this machine sees these pictures: --token asks for a word", style="yellow")
        config = uvicorn.Config(
            app,
            http=Impatient,
            log_level="warning",
            access_log=False,
            limit_concurrency=AT_ONCE,
            timeout_graceful_shutdown=10,
            server_header=False,
        )
        with suppress(KeyboardInterrupt):  # heard, and all questions answered, before it comes here
            uvicorn.Server(config).run(sockets=[listening])
    console.print("stopped")


class Impatient(H11Protocol):
    """Whoever connects and asks nothing is sent away: else a few could keep everybody out."""

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self.loop.call_later(FIRST_QUESTION, self._still_nothing)

    def _still_nothing(self) -> None:
        if self.cycle is None and not self.transport.is_closing():
            self.transport.close()


def _leave_room() -> None:
    """Half of the cores compute: a query is small, and threads that wait for each other on busy cores are slow."""
    threads = max(1, (os.cpu_count() or 1) // 2)
    torch.set_num_threads(threads)
    with suppress(ImportError):  # an index that needs it says so
        import faiss

        faiss.omp_set_num_threads(threads)


def _listening(host: str, port: int) -> socket.socket:
    if not 0 <= port <= 65535:
        raise ValueError(f"--port must be from 0 (any that is free) to 65535, got {port}")
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        return socket.create_server(found[4][:2], family=found[0], backlog=1024)
    except OSError as error:
        raise ValueError(
            f"cannot listen at {host}, port {port}: {error.strerror}; --port 0 takes any free one"
        ) from error


def _is_loopback(host: str) -> bool:
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _about(settings: ServeSettings, runs: Path | None) -> str:
    indexes = ", ".join(str(folder) for folder in settings.indexes) or "no index"
    return f"{indexes}; {'runs of ' + str(runs) if runs is not None else 'no runs'}. Ctrl-C ends."
