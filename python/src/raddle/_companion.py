"""The companion: the process beside this one that holds brokers and pools, and the sockets to it.

This module has no threads, so that a fork is safe: the child notices that it is another process
and starts a companion of its own. Each thread and each event loop has its own socket, so that no
two of them ever wait for each other.
"""

from __future__ import annotations

import array
import asyncio
import atexit
import logging
import os
import socket
import subprocess
import threading
import weakref
from collections import deque
from typing import Any

import msgspec

from . import _frames
from ._binary import find_binary
from ._errors import CompanionLost, Error

_VARIABLE = "RADDLE_COMPANION"
#: How much is read at once.
_READ = 256 * 1024
_LOG = logging.getLogger("raddle")

_lock = threading.Lock()
_current: _Companion | None = None
_local = threading.local()
_loops: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, LoopConnection] = (
    weakref.WeakKeyDictionary()
)


class _Companion:
    """A companion that serves this process."""

    def __init__(self) -> None:
        self.pid = os.getpid()
        #: The numbers of the open brokers.
        self.brokers: dict[tuple[str | None, str], int] = {}
        self._lock = threading.Lock()
        self._path: str | None = None
        self._control: socket.socket | None = None
        self._process: subprocess.Popen[bytes] | None = None
        where = os.environ.get(_VARIABLE, "")
        if where == "off":
            raise Error(
                f"{_VARIABLE}=off forbids this process to start a companion: "
                f"unset it, or name a shared one with {_VARIABLE}=unix:PATH"
            )
        if where.startswith("unix:"):
            self._path = where[len("unix:") :]
        elif where:
            raise Error(f"{_VARIABLE} is '{where}': it is 'off', 'unix:PATH' or not set")
        else:
            self._start()

    def _start(self) -> None:
        ours, theirs = socket.socketpair()
        with theirs:
            command = [find_binary(), "companion", "--fd", str(theirs.fileno())]
            try:
                # In a session of its own: Ctrl-C is for the program, which the companion follows.
                self._process = subprocess.Popen(
                    command,
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    pass_fds=(theirs.fileno(),),
                    start_new_session=True,
                )
            except OSError as error:
                ours.close()
                raise Error(f"cannot start '{command[0]} companion': {error}") from error
        self._control = ours

    @property
    def process_id(self) -> int | None:
        """The process id, unless the companion is shared."""
        return None if self._process is None else self._process.pid

    def connect(self) -> socket.socket:
        """A further socket to the companion."""
        if self._path is not None:
            ours = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            try:
                ours.connect(self._path)
            except OSError as error:
                ours.close()
                raise Error(
                    f"no companion serves at {self._path} ({error}): "
                    f"start one with 'raddle companion --listen {self._path}'"
                ) from error
            return ours
        assert self._control is not None
        ours, theirs = socket.socketpair()
        request = _frames.frame(0, "connect")
        rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [theirs.fileno()]))]
        with theirs, self._lock:
            try:
                self._control.sendmsg([request], rights, socket.MSG_NOSIGNAL)
            except OSError:
                ours.close()
                raise CompanionLost("the companion has ended") from None
        return ours

    def close(self) -> None:
        """Ends the companion, and waits for its end."""
        if self._control is not None:
            self._control.close()
        if self._process is not None:
            self._process.wait()

    def forget(self) -> None:
        """Gives up the sockets of a parent in its forked child."""
        if self._control is not None:
            self._control.close()
        if self._process is not None:
            # It is a child of the parent: nothing waits for it here.
            self._process.returncode = 0


def companion() -> _Companion:
    """The companion of this process. It is started if there is none."""
    global _current
    with _lock:
        found = _current
        if found is None or found.pid != os.getpid():
            found = _current = _Companion()
        return found


def current_companion() -> _Companion | None:
    """The companion of this process, if there is one."""
    found = _current
    return found if found is not None and found.pid == os.getpid() else None


def shutdown() -> None:
    """Ends the companion of this process, and the pools in it. The next request starts another."""
    global _current
    with _lock:
        found, _current = _current, None
    _loops.clear()
    _local.__dict__.clear()
    if found is not None and found.pid == os.getpid():
        found.close()


def _drop(companion: _Companion) -> None:
    """Forgets a companion that has ended."""
    global _current
    with _lock:
        if _current is companion:
            _current = None
    companion.close()


def _after_fork() -> None:
    global _lock, _current, _local, _loops
    _lock = threading.Lock()
    found, _current = _current, None
    if found is not None:
        found.forget()
    _local = threading.local()
    _loops = weakref.WeakKeyDictionary()


os.register_at_fork(after_in_child=_after_fork)
atexit.register(shutdown)


def check_hello(reply: _frames.Reply) -> None:
    """Refuses a companion of another version."""
    protocol = reply.hello.get("protocol") if isinstance(reply.hello, dict) else None
    if protocol != _frames.PROTOCOL:
        raise Error(
            f"the companion speaks protocol {protocol}, this package {_frames.PROTOCOL}: "
            "install both from one wheel with 'pip install raddle'"
        )


def show_note(text: str) -> None:
    """Logs a remark, such as why a task waits."""
    _LOG.warning("%s", text)


class ThreadConnection:
    """The socket of one thread. Its requests block the thread."""

    def __init__(self, companion: _Companion) -> None:
        self.companion = companion
        self._socket = companion.connect()
        self._decoder = _frames.Decoder()
        self._number = 0
        self._ready: list[tuple[_frames.Reply, bytes | None]] = []
        #: The replies that have come for the unfinished requests.
        self._open: dict[int, deque[tuple[_frames.Reply, bytes | None]]] = {}
        check_hello(self._next()[0])

    def __del__(self) -> None:
        found = getattr(self, "_socket", None)
        if found is not None:
            found.close()

    def is_open(self) -> bool:
        """Whether the companion has not closed its end."""
        try:
            return bool(self._socket.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT))
        except BlockingIOError:
            return True
        except OSError:
            return False

    def begin(self, verb: Any, payload: bytes | None = None) -> int:
        """Sends a request. Returns its number."""
        self._number += 1
        self._open[self._number] = deque()
        self._send(_frames.frame(self._number, verb, payload))
        return self._number

    def cancel(self, number: int) -> None:
        """Ends a request, unless it has ended."""
        if self._open.pop(number, None) is not None:
            self._send(_frames.frame(number, "cancel"))

    def extend(self, number: int, items: int) -> None:
        """Makes room for more items of a request."""
        self._send(_frames.frame(number, {"credit": items}))

    def receive(self, number: int) -> tuple[_frames.Reply, bytes | None]:
        """The next reply to a request: an item or the final one.

        The thread may begin other requests in between, as in the body of a loop over items.
        """
        mine = self._open[number]
        while not mine:
            reply, payload = self._next()
            waiting = self._open.get(reply.id)
            if reply.note is not None:
                show_note(reply.note)
            elif waiting is not None:
                waiting.append((reply, payload))
        reply, payload = mine.popleft()
        if reply.item is msgspec.UNSET:
            del self._open[number]
        if reply.error is not None:
            raise _frames.exception_of(reply.error, payload)
        return reply, payload

    def request(self, verb: Any, payload: bytes | None = None) -> tuple[Any, bytes | None]:
        """Sends a request, and returns its result."""
        number = self.begin(verb, payload)
        try:
            reply, data = self.receive(number)
        except (KeyboardInterrupt, SystemExit):
            self.cancel(number)
            raise
        return reply.ok, data

    def _send(self, data: bytes) -> None:
        try:
            self._socket.sendall(data, socket.MSG_NOSIGNAL)
        except OSError:
            raise self._lost() from None

    def _next(self) -> tuple[_frames.Reply, bytes | None]:
        while not self._ready:
            try:
                data = self._socket.recv(_READ)
            except ConnectionError:
                data = b""
            if not data:
                raise self._lost()
            self._ready = list(self._decoder.feed(data))
            self._ready.reverse()
        return self._ready.pop()

    def _lost(self) -> CompanionLost:
        _local.__dict__.pop("connection", None)
        _drop(self.companion)
        return CompanionLost("the companion ended during the request")


def connection() -> ThreadConnection:
    """The socket of this thread."""
    found: ThreadConnection | None = _local.__dict__.get("connection")
    if found is not None and found.companion is _current and found.is_open():
        return found
    if found is not None and found.companion is _current:
        _drop(found.companion)
    found = _local.connection = ThreadConnection(companion())
    return found


class LoopConnection:
    """The socket of one event loop."""

    def __init__(self, companion: _Companion, loop: asyncio.AbstractEventLoop) -> None:
        self.companion = companion
        self._socket = companion.connect()
        self._socket.setblocking(False)
        self._decoder = _frames.Decoder()
        self._number = 0
        self._waiting: dict[int, asyncio.Future[Any]] = {}
        self._streams: dict[int, asyncio.Queue[Any]] = {}
        self._unsent: list[bytes] = []
        self._is_flushing = False
        self.is_open = True
        self._hello: Exception | None = None
        loop.add_reader(self._socket.fileno(), self._read)

    def __del__(self) -> None:
        found = getattr(self, "_socket", None)
        if found is not None:
            found.close()

    def send(self, verb: Any, payload: bytes | None = None) -> int:
        """Sends a request at the end of this turn of the loop. Returns its number."""
        self._number += 1
        self._push(_frames.frame(self._number, verb, payload))
        return self._number

    async def request(self, verb: Any, payload: bytes | None = None) -> tuple[Any, bytes | None]:
        """Sends a request, and returns its result. A caller that is cancelled ends the request."""
        number, future = self.post(verb, payload)
        try:
            result: tuple[Any, bytes | None] = await future
            return result
        except asyncio.CancelledError:
            self.abandon(number)
            raise

    def post(self, verb: Any, payload: bytes | None = None) -> tuple[int, asyncio.Future[Any]]:
        """Sends a request. Returns its number, and the future of its result."""
        number = self.send(verb, payload)
        future = self._waiting[number] = asyncio.get_running_loop().create_future()
        return number, future

    def abandon(self, number: int) -> None:
        """Ends a request that was posted."""
        if self._waiting.pop(number, None) is not None:
            self.cancel(number)

    def open_stream(self, verb: Any, payload: bytes | None = None) -> tuple[int, asyncio.Queue[Any]]:
        """Sends a request with items. The queue gets `(reply, payload)` or an exception."""
        number = self.send(verb, payload)
        queue: asyncio.Queue[Any] = asyncio.Queue()
        self._streams[number] = queue
        return number, queue

    def close_stream(self, number: int) -> None:
        """Ends a request with items."""
        if self._streams.pop(number, None) is not None:
            self.cancel(number)

    def cancel(self, number: int) -> None:
        """Ends a request."""
        if self.is_open:
            self._push(_frames.frame(number, "cancel"))

    def extend(self, number: int, items: int) -> None:
        """Makes room for more items of a stream."""
        if self.is_open:
            self._push(_frames.frame(number, {"credit": items}))

    def _push(self, data: bytes) -> None:
        if not self.is_open:
            raise CompanionLost("the companion has ended")
        self._unsent.append(data)
        if not self._is_flushing:
            # Requests of one turn of the loop go together.
            self._is_flushing = True
            asyncio.get_running_loop().call_soon(self._flush)

    def _flush(self) -> None:
        data = b"".join(self._unsent)
        self._unsent.clear()
        try:
            sent = self._socket.send(data, socket.MSG_NOSIGNAL)
        except (BlockingIOError, InterruptedError):
            sent = 0
        except OSError:
            self._lose()
            return
        loop = asyncio.get_running_loop()
        if sent < len(data):
            self._unsent.append(data[sent:])
            loop.add_writer(self._socket.fileno(), self._flush)
            return
        self._is_flushing = False
        loop.remove_writer(self._socket.fileno())

    def _read(self) -> None:
        try:
            data = self._socket.recv(_READ)
        except (BlockingIOError, InterruptedError):
            return
        except OSError:
            data = b""
        if not data:
            self._lose()
            return
        for reply, payload in self._decoder.feed(data):
            future = self._waiting.get(reply.id)
            if reply.note is not None:
                show_note(reply.note)
            elif future is not None:
                del self._waiting[reply.id]
                if future.done():
                    pass
                elif reply.error is not None:
                    future.set_exception(_frames.exception_of(reply.error, payload))
                else:
                    future.set_result((reply.ok, payload))
            elif reply.id in self._streams:
                if reply.error is not None:
                    self._streams.pop(reply.id).put_nowait(_frames.exception_of(reply.error, payload))
                elif reply.item is msgspec.UNSET:
                    self._streams.pop(reply.id).put_nowait((reply, payload))
                else:
                    self._streams[reply.id].put_nowait((reply, payload))
            elif reply.hello is not None:
                try:
                    check_hello(reply)
                except Error as error:
                    self._lose(error)
                    return

    def _lose(self, error: Error | None = None) -> None:
        self.is_open = False
        loop = asyncio.get_running_loop()
        loop.remove_reader(self._socket.fileno())
        loop.remove_writer(self._socket.fileno())
        error = error or CompanionLost("the companion ended during the request")
        waiting, self._waiting = self._waiting, {}
        streams, self._streams = self._streams, {}
        for future in waiting.values():
            if not future.done():
                future.set_exception(error)
        for queue in streams.values():
            queue.put_nowait(error)
        _drop(self.companion)


def loop_connection() -> LoopConnection:
    """The socket of the running event loop."""
    loop = asyncio.get_running_loop()
    found = _loops.get(loop)
    if found is None or not found.is_open or found.companion is not _current:
        found = _loops[loop] = LoopConnection(companion(), loop)
    return found


def check_may_block(verb: str, twin: str) -> None:
    """Refuses to block an event loop."""
    if asyncio.events._get_running_loop() is not None:
        raise Error(f"{verb} would block the event loop here: use 'await {twin}'")
