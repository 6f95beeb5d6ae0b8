"""The connection to the worker. Every thread may send on it."""

from __future__ import annotations

import os
import socket
import threading
from contextlib import AbstractContextManager, nullcontext

from .messages import MAX_FRAME

#: The descriptor that the worker has put it on.
DESCRIPTOR = 3
_READ = 256 * 1024


class Connection:
    """A blocking socket: a host that sends more than its worker reads has to wait."""

    def __init__(self, descriptor: int = DESCRIPTOR) -> None:
        os.set_inheritable(descriptor, False)
        self._socket = socket.socket(fileno=descriptor)
        self._socket.setblocking(True)
        self._lock = threading.Lock()
        #: Holds back the interruption of the main thread while it sends.
        self.protection: AbstractContextManager[object] = nullcontext()

    def fileno(self) -> int:
        """The descriptor."""
        return self._socket.fileno()

    def send(self, data: bytes) -> None:
        """Sends frames. If the worker is gone, so is the reason to run."""
        with self.protection, self._lock:
            try:
                self._socket.sendall(data)
            except OSError:
                os._exit(1)

    def receive(self) -> bytes | None:
        """The bytes that have arrived; `None` if nothing has, and no bytes at the end."""
        try:
            return self._socket.recv(_READ, socket.MSG_DONTWAIT)
        except BlockingIOError:
            return None
        except OSError:
            return b""


def is_too_long(payload: bytes) -> bool:
    """Whether a payload does not fit into a frame."""
    return len(payload) > MAX_FRAME - 1024
