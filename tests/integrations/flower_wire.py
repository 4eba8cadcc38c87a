"""A proxy on 127.0.0.1 that forwards TCP connections, and keeps what it forwards."""

import contextlib
import socket
import threading
from collections import defaultdict
from typing import final


@final
class Proxy:
    """Forwards connections to a port of 127.0.0.1. `sent` and `received` are the bytes of each connection.

    It sees what anybody between a node and the server sees: with TLS, only numbers of bytes.
    """

    def __init__(self, target: int):
        self._target = target
        self.sent: dict[int, bytearray] = defaultdict(bytearray)
        self.received: dict[int, bytearray] = defaultdict(bytearray)
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listening.getsockname()[1]
        self._open: list[socket.socket] = []
        threading.Thread(target=self._accept, daemon=True).start()

    def __enter__(self) -> "Proxy":
        return self

    def __exit__(self, *_: object) -> None:
        for one in (self._listening, *self._open):
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
            one.close()

    def _accept(self) -> None:
        number = 0
        with contextlib.suppress(OSError):
            while True:
                near, _ = self._listening.accept()
                try:
                    far = socket.create_connection(("127.0.0.1", self._target), 10.0)
                except OSError:
                    near.close()
                    continue
                far.settimeout(None)
                self._open += [near, far]
                number += 1
                for source, to, kept in ((near, far, self.sent[number]), (far, near, self.received[number])):
                    threading.Thread(target=self._forward, args=(source, to, kept), daemon=True).start()

    @staticmethod
    def _forward(source: socket.socket, to: socket.socket, kept: bytearray) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(65536):
                kept += data
                to.sendall(data)
        for one in (source, to):
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)


def all_bytes(connections: dict[int, bytearray]) -> bytes:
    """Return the bytes of all connections."""
    return b"\n".join(bytes(one) for one in connections.values())
