"""`tercet serve`: check the settings, bind the socket, run uvicorn."""

import ipaddress
import os
import socket
from contextlib import suppress
from pathlib import Path
from urllib.parse import quote

import torch
import uvicorn
from rich.console import Console

from tercet.search.index import MANIFEST
from tercet.search.settings import ServeSettings
from tercet.serve.app import application
from tercet.serve.connections import LimitedH11Protocol
from tercet.serve.limits import MAX_CONNECTIONS, SHUTDOWN_TIMEOUT_SECONDS

TOKEN_VARIABLE = "TERCET_TOKEN"


def serve(settings: ServeSettings, console: Console) -> None:
    _limit_threads()
    token = access_token(settings)
    for folder in settings.indexes:  # before loading anything: a wrong path fails at once
        if not (folder / MANIFEST).is_file():
            raise ValueError(f"{folder}: not an index (no {MANIFEST}); create one with `tercet index`")
    runs: Path | None = settings.runs
    if not settings.runs.is_dir():
        runs = None
        if settings.runs != ServeSettings.runs:
            raise ValueError(f"--runs {settings.runs}: no such folder")
    with bind(settings.host, settings.port) as listener:
        app = application(list(settings.indexes), runs, hosts=accepted_hosts(settings), token=token)
        host = f"[{settings.host}]" if ":" in settings.host else settings.host
        url = f"http://{host}:{listener.getsockname()[1]}/"
        if token is not None:
            url += f"?token={quote(token, safe='')}"
        for line in (url, _summary(settings, runs)):
            console.print(line, highlight=False, markup=False, soft_wrap=True)
        if token is None and not _is_loopback(settings.host):
            warning = "Warning: anyone who can reach this machine can see these images; set a token to require it"
            console.print(warning, style="yellow", markup=False, soft_wrap=True)
        config = uvicorn.Config(
            app,
            http=LimitedH11Protocol,
            ws="none",
            log_level="warning",
            access_log=False,
            limit_concurrency=MAX_CONNECTIONS,
            timeout_graceful_shutdown=SHUTDOWN_TIMEOUT_SECONDS,
            server_header=False,
        )
        with suppress(KeyboardInterrupt):  # raised again by uvicorn after its graceful shutdown
            uvicorn.Server(config).run(sockets=[listener])
    console.print("Server stopped.")


def access_token(settings: ServeSettings) -> str | None:
    """Return the token of --token, --token-file or TERCET_TOKEN."""
    if settings.token is not None and settings.token_file is not None:
        raise ValueError("--token and --token-file are both given; give one of them")
    token, given_by = settings.token, "--token"
    if settings.token_file is not None:
        given_by = f"--token-file {settings.token_file}"
        try:
            token = settings.token_file.read_text(encoding="utf-8").strip()
        except (OSError, UnicodeError) as error:
            raise ValueError(f"{given_by}: cannot read the file: {error}") from error
    elif token is None and TOKEN_VARIABLE in os.environ:
        token, given_by = os.environ[TOKEN_VARIABLE], TOKEN_VARIABLE
    if token is not None and not token.strip():
        raise ValueError(f"{given_by} must not be empty")
    return token


def accepted_hosts(settings: ServeSettings) -> set[str]:
    """Names in links to this server: those of this machine and --host-names. Addresses are accepted anyway."""
    own = () if _is_loopback(settings.host) else (socket.gethostname(),)
    names = ("localhost", settings.host, *own, *settings.host_names)
    return {name.strip("[]").lower().rstrip(".") for name in names}


def _limit_threads() -> None:
    """Compute with half of the cores: queries are small, and more threads than free cores slow each other down."""
    threads = max(1, (os.cpu_count() or 1) // 2)
    torch.set_num_threads(threads)
    with suppress(ImportError):  # opening an index reports that faiss is missing
        import faiss

        faiss.omp_set_num_threads(threads)


def bind(host: str, port: int) -> socket.socket:
    if not 0 <= port <= 65535:
        raise ValueError(f"--port must be from 0 (a free port) to 65535, got {port}")
    try:
        family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        listener = socket.create_server(address[:2], family=family, backlog=1024)
        # Accepted connections inherit it. asyncio does not set it for sockets of create_server, and without it each
        # response on a kept connection waits some 40 ms for an acknowledgement.
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return listener
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
