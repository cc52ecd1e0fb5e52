"""Clients that send or read slowly, or open many connections, do not keep others out. The server runs in a thread."""

import asyncio
import contextlib
import socket
import threading
import time
from types import SimpleNamespace

import anyio
import pytest
import uvicorn
from fastapi import FastAPI, HTTPException
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response

from tercet.serve import connections, params
from tercet.serve.limits import MAX_CONCURRENT_UPLOADS, MAX_UPLOADS_PER_NETWORK, MAX_WAITING_UPLOADS_PER_NETWORK
from tercet.serve.middleware import SecurityHeadersMiddleware
from tercet.serve.search_routes import search_routes
from tercet.serve.server import bind
from tercet.serve.state import AppState, UploadLimit

DECODING_SECONDS = 0.02  # long enough for others to start
REQUEST = b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n"


@contextlib.contextmanager
def running(app):
    """Serve an application; yield a function that connects, and the server."""
    server = uvicorn.Server(
        uvicorn.Config(app, http=connections.LimitedH11Protocol, lifespan="off", log_level="error", ws="none")
    )
    with bind("127.0.0.1", 0) as listener, contextlib.ExitStack() as clients:

        def connect(source="127.0.0.1", receive_buffer=None):
            client = clients.enter_context(socket.socket())
            if receive_buffer is not None:
                client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
            client.settimeout(30)
            client.bind((source, 0))
            client.connect(listener.getsockname())
            return client

        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
        thread.start()
        try:
            yield connect, server
        finally:
            server.should_exit = True
            thread.join(30)


def is_closed(client):
    """Wait until the server closes the connection."""
    with contextlib.suppress(ConnectionResetError):
        while client.recv(65536):
            pass
    return True


@pytest.fixture
def quick(monkeypatch):
    monkeypatch.setattr(connections, "REQUEST_TIMEOUT_SECONDS", 0.3)


@pytest.mark.parametrize(
    "sent",
    [
        b"",
        b"GET / HT",
        REQUEST + b"G",
        REQUEST + b"GET / HTTP/1.1\r\nHost: loc",
        b"POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9\r\n\r\nabc",
    ],
)
def test_a_connection_without_a_complete_request_is_closed(quick, sent):
    with running(PlainTextResponse("ok")) as (connect, _):
        client = connect()
        client.sendall(sent)
        assert is_closed(client)


def test_a_request_in_progress_is_not_closed(quick):
    release = threading.Event()

    async def slow(scope, receive, send):
        await anyio.to_thread.run_sync(release.wait)
        await PlainTextResponse("slow response")(scope, receive, send)

    with running(slow) as (connect, _):
        client, silent = connect(), connect()
        client.sendall(REQUEST)
        assert is_closed(silent)
        release.set()
        assert client.recv(65536).startswith(b"HTTP/1.1 200")


def test_a_kept_connection_serves_many_requests():
    with running(PlainTextResponse("the body")) as (connect, _):
        client = connect()
        for pipelined in [1] * 20 + [3]:
            client.sendall(pipelined * REQUEST)
            received = b""
            while received.count(b"the body") < pipelined:
                received += client.recv(65536)
            assert received.count(b"HTTP/1.1 200") == pipelined


def test_a_client_that_does_not_read_is_closed(quick):
    with running(Response(bytes(50 << 20))) as (connect, server):
        client = connect(receive_buffer=4096)
        client.sendall(REQUEST)
        client.recv(1)
        deadline = time.monotonic() + 30
        while server.server_state.connections and time.monotonic() < deadline:
            time.sleep(0.02)
        assert not server.server_state.connections


def test_connections_of_one_address_leave_room_for_others(monkeypatch):
    monkeypatch.setattr(connections, "MAX_CONNECTIONS_PER_NETWORK", 3)
    with running(PlainTextResponse("ok")) as (connect, _):
        kept = [connect() for _ in range(3)]
        for client in kept:
            client.sendall(REQUEST)
            assert client.recv(65536).startswith(b"HTTP/1.1 200")
        one_more = connect()
        assert one_more.recv(65536).startswith(b"HTTP/1.1 503")
        assert is_closed(one_more)
        other = connect(source="127.0.0.2")
        other.sendall(REQUEST)
        assert other.recv(65536).startswith(b"HTTP/1.1 200")


def test_responses_are_sent_at_once():
    with bind("127.0.0.1", 0) as listener, socket.create_connection(listener.getsockname()):
        accepted, _ = listener.accept()
        with accepted:
            assert accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)


def upload(chunks):
    """A request whose body is sent by an async generator of (bytes, is there more)."""

    async def receive():
        body, more = await anext(chunks)
        return {"type": "http.request", "body": body, "more_body": more}

    return Request({"type": "http", "method": "POST", "headers": []}, receive)


def test_a_slow_upload_is_not_waited_for(monkeypatch):
    monkeypatch.setattr(params, "UPLOAD_START_SECONDS", 0.1)

    async def stalls():
        yield b"abc", True
        await asyncio.Event().wait()

    async def steady():
        yield bytes(1 << 20), True  # enough for many seconds
        await asyncio.sleep(0.2)
        yield b"end", False

    async def main():
        with anyio.fail_after(30):
            with pytest.raises(HTTPException, match="slower than 64 kB per second") as error:
                await params.read_upload(upload(stalls()))
            assert error.value.status_code == 408
            assert (await params.read_upload(upload(steady()))).endswith(b"end")

    asyncio.run(main())


def test_uploads_of_one_address_leave_room_for_others():
    async def main():
        limit, release, reading = UploadLimit(), asyncio.Event(), []

        async def hold(network):
            async with limit.slot(network):
                reading.append(network)
                await release.wait()

        count = MAX_UPLOADS_PER_NETWORK + MAX_WAITING_UPLOADS_PER_NETWORK
        tasks = [asyncio.create_task(hold("first")) for _ in range(count)]
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        with pytest.raises(HTTPException, match="too many uploads"):
            await hold("first")
        tasks.append(asyncio.create_task(hold("second")))
        while "second" not in reading:
            await asyncio.sleep(0)
        assert reading.count("first") == MAX_UPLOADS_PER_NETWORK < MAX_CONCURRENT_UPLOADS
        release.set()
        await asyncio.gather(*tasks)
        assert not limit._by_network  # nothing is remembered

    asyncio.run(asyncio.wait_for(main(), 30))


def test_large_uploads_are_decoded_one_at_a_time(monkeypatch):
    decoding, most, lock = 0, 0, threading.Lock()

    def decode(*_):
        nonlocal decoding, most
        with lock:
            decoding += 1
            most = max(most, decoding)
        time.sleep(DECODING_SECONDS)
        with lock:
            decoding -= 1

    async def main():
        state, app, sent = AppState([], None), FastAPI(), []
        index = SimpleNamespace(name="stub", searcher=SimpleNamespace(search_image=lambda image, k: []))
        monkeypatch.setattr(state.indexes, "get", lambda name: index)
        monkeypatch.setattr("tercet.serve.search_routes.open_image", decode)
        app.include_router(search_routes(state))

        async def post(number):
            async def body():
                yield b"image", False

            scope = {"type": "http", "method": "POST", "path": "/api/search/image", "query_string": b"", "headers": []}
            chunks = body()

            async def receive():
                content, more = await anext(chunks)
                return {"type": "http.request", "body": content, "more_body": more}

            async def send(message):
                sent.append(message.get("status"))

            await app(scope | {"client": (f"10.0.0.{number}", 1)}, receive, send)

        await asyncio.gather(*(post(number) for number in range(MAX_CONCURRENT_UPLOADS)))
        assert sent.count(200) == MAX_CONCURRENT_UPLOADS

    asyncio.run(main())
    assert most == 1


def test_a_request_whose_body_breaks_off_is_no_traceback_in_the_log(capfd):
    """h11 has answered 400 by the time that the application answers."""
    with running(SecurityHeadersMiddleware(PlainTextResponse("ok"))) as (connect, _):
        client = connect()
        client.sendall(b"POST / HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\nZZ\r\n")
        assert client.recv(65536).startswith(b"HTTP/1.1 400")
        assert is_closed(client)
        other = connect()
        other.sendall(REQUEST)
        assert other.recv(65536).startswith(b"HTTP/1.1 200")
    assert "Traceback" not in capfd.readouterr().err


def test_a_body_that_turns_invalid_after_the_response_is_no_traceback_in_the_log(caplog):
    """As a request that is refused by its head: uvicorn answers 400 a second time."""
    with running(PlainTextResponse("refused", status_code=403)) as (connect, _):
        client = connect()
        client.sendall(b"POST / HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n")
        assert client.recv(65536).startswith(b"HTTP/1.1 403")
        client.sendall(b"ZZ\r\n")
        assert is_closed(client)
        other = connect()
        other.sendall(REQUEST)
        assert other.recv(65536).startswith(b"HTTP/1.1 403")
    assert not caplog.records
