"""Limits of a connection that only uvicorn's protocol can apply: no request exists yet, or it is already answered."""

from typing import Any

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol, RequestResponseCycle

from tercet.serve.limits import MAX_CONNECTIONS_PER_NETWORK, REQUEST_TIMEOUT_SECONDS
from tercet.serve.middleware import network_of

TOO_MANY = b"HTTP/1.1 503 Service Unavailable\r\nconnection: close\r\ncontent-length: 0\r\nretry-after: 1\r\n\r\n"


class LimitedH11Protocol(H11Protocol):
    """Closes connections that send no complete request head in time, or do not read the response.

    uvicorn's keep-alive timer ends with the first byte: a few clients could occupy all connections with one byte each.
    Also limits the connections of one network.
    """

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self.network = network_of(self.client[0]) if self.client else ""
        same = [other for other in self.connections if getattr(other, "network", None) == self.network]
        if len(same) > MAX_CONNECTIONS_PER_NETWORK:
            transport.write(TOO_MANY)
            transport.close()
        else:
            self._close_without_progress(None, 0)

    def on_response_complete(self) -> None:
        answered = self.cycle
        super().on_response_complete()  # may begin with the next request, if that was already received
        self._close_without_progress(answered, self.transport.get_write_buffer_size())

    def send_400_response(self, msg: str) -> None:
        if self.conn.our_state in (h11.IDLE, h11.SEND_RESPONSE):
            super().send_400_response(msg)
        else:
            self.transport.close()  # the response has begun, as to a request that was refused before its body was read

    def _close_without_progress(self, last: RequestResponseCycle | None, unsent: int) -> None:
        self.loop.call_later(REQUEST_TIMEOUT_SECONDS, self._check_progress, last, unsent)

    def _check_progress(self, last: RequestResponseCycle | None, unsent: int) -> None:
        if self.cycle is not last:
            return  # the next request was received
        still_unsent = self.transport.get_write_buffer_size()
        if still_unsent < unsent and still_unsent:
            self._close_without_progress(last, still_unsent)  # a slow reader
        else:
            self.transport.abort()  # close() would wait until the response is read
