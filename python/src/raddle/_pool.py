"""Pools: warm workers that a program starts, finds, or both, and the calls to them."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from contextvars import ContextVar, Token
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, Union

import msgspec

from . import _companion
from ._app import App, all_apps, default_app
from ._errors import Error
from ._options import Span, span_seconds
from ._requests import abroker, broker

Balance = Literal["round-robin", "least-loaded", "power-of-two", "sticky"]


@dataclass(frozen=True)
class LocalDiscovery:
    """The pool of this name, of this user on this machine."""

    name: str

    def _options(self, _broker: int | None) -> dict[str, Any]:
        return {"local": self.name}


@dataclass(frozen=True)
class LanDiscovery:
    """Workers on the same network, by mDNS under this name."""

    name: str

    def _options(self, _broker: int | None) -> dict[str, Any]:
        return {"lan": self.name}


@dataclass(frozen=True)
class FileDiscovery:
    """Workers that a file or directory lists."""

    path: str | os.PathLike[str]

    def _options(self, _broker: int | None) -> dict[str, Any]:
        return {"file": os.path.abspath(self.path)}


@dataclass(frozen=True)
class DnsDiscovery:
    """Workers at the addresses of a DNS name."""

    name: str

    def _options(self, _broker: int | None) -> dict[str, Any]:
        return {"dns": self.name}


@dataclass(frozen=True)
class BrokerDiscovery:
    """Workers in the registry of this program's broker, under this name."""

    name: str

    def _options(self, broker: int | None) -> dict[str, Any]:
        return {"broker": {"broker": broker, "name": self.name}}


Discovery = Union[LocalDiscovery, LanDiscovery, FileDiscovery, DnsDiscovery, BrokerDiscovery]


@dataclass(frozen=True)
class WorkerCredentials:
    """A certificate and its key, and the authority that signs those of workers."""

    ca: str
    certificate: str | None = None
    key: str | None = None
    mutual: bool = True

    @classmethod
    def from_files(
        cls,
        ca: str | os.PathLike[str],
        certificate: str | os.PathLike[str] | None = None,
        key: str | os.PathLike[str] | None = None,
        *,
        mutual: bool = True,
    ) -> WorkerCredentials:
        """Reads PEM files. Workers and pools notice when the files change."""

        def absolute(path: str | os.PathLike[str] | None) -> str | None:
            return None if path is None else os.path.abspath(path)

        return cls(os.path.abspath(ca), absolute(certificate), absolute(key), mutual)


class PoolWorker(msgspec.Struct):
    """A worker that calls can go to."""

    uid: str
    address: str
    pid: int
    version: str
    tags: frozenset[str]
    extra: dict[str, str]
    secure: bool


_AMBIENT: ContextVar[WorkerPool | None] = ContextVar("raddle_pool", default=None)


class WorkerPool:
    """Workers to call routines on, as a context manager: with `async with`, or `with`.

    | size | discovery | |
    | --- | --- | --- |
    | not set | not set | *default*: as many workers as there are cores |
    | set | not set | *ephemeral*: that many workers |
    | not set | set | *durable*: no workers of its own |
    | set | set | *hybrid*: both |
    """

    def __init__(
        self,
        *tags: str,
        size: int | None = None,
        spawn: int | None = None,
        app: App | str | None = None,
        host: Sequence[str] | None = None,
        name: str | None = None,
        discovery: Discovery | None = None,
        balancer: Balance | None = None,
        credentials: WorkerCredentials | None = None,
        quorum: int | None = None,
        lazy: bool = False,
        limit: int | None = None,
        start_timeout: Span | None = None,
        shutdown_timeout: Span | None = None,
    ) -> None:
        if size is not None and spawn is not None:
            raise TypeError("size= and spawn= are the same: give one of them")
        self._size = spawn if size is None else size
        self._discovery = discovery
        self._shutdown_timeout = shutdown_timeout
        self._number: int | None = None
        self._companion: Any = None
        self._ambient: list[Token[WorkerPool | None]] = []
        self.name = name
        options: dict[str, Any] = {
            "name": name,
            "size": self._size,
            "tags": list(tags),
            "balancer": balancer,
            "quorum": quorum,
            "lazy": lazy,
            "limit": limit,
        }
        if credentials is not None:
            options["credentials"] = {
                "ca": credentials.ca,
                "certificate": credentials.certificate,
                "key": credentials.key,
                "mutual": credentials.mutual,
            }
        if start_timeout is not None:
            options["start_timeout_ms"] = _milliseconds(start_timeout)
        if self._size is not None or discovery is None:
            options["host"] = _host_command(app, host)
        self._options = options

    def start(self) -> None:
        """Starts the pool. Returns when its workers are ready, or as many as `quorum` says."""
        _companion.check_may_block("WorkerPool.start()", "WorkerPool.astart()")
        connection = _companion.connection()
        needs_broker = isinstance(self._discovery, BrokerDiscovery)
        request = self._open(broker(connection) if needs_broker else None)
        self._opened(connection.companion, connection.request(request)[0])

    async def astart(self) -> None:
        """Starts the pool. Returns when its workers are ready, or as many as `quorum` says."""
        connection = _companion.loop_connection()
        needs_broker = isinstance(self._discovery, BrokerDiscovery)
        request = self._open(await abroker(connection) if needs_broker else None)
        self._opened(connection.companion, (await connection.request(request))[0])

    def stop(self) -> None:
        """Stops the pool. Calls are cancelled, after `shutdown_timeout` if that is set."""
        request = self._close()
        if request is not None:
            _companion.connection().request(request)

    async def astop(self) -> None:
        """Stops the pool. Calls are cancelled, after `shutdown_timeout` if that is set."""
        request = self._close()
        if request is not None:
            await _companion.loop_connection().request(request)

    def workers(self) -> list[PoolWorker]:
        """The workers that calls can go to now."""
        _companion.check_may_block("WorkerPool.workers()", "WorkerPool.aworkers()")
        request = {"pool_workers": {"pool": self.number}}
        return msgspec.convert(_companion.connection().request(request)[0], list[PoolWorker])

    async def aworkers(self) -> list[PoolWorker]:
        """The workers that calls can go to now."""
        request = {"pool_workers": {"pool": self.number}}
        found = await _companion.loop_connection().request(request)
        return msgspec.convert(found[0], list[PoolWorker])

    @property
    def number(self) -> int:
        """The number of the pool in the companion."""
        if self._number is None:
            raise Error("the pool is not open: use 'async with WorkerPool()' or 'with WorkerPool()'")
        if self._companion is not _companion.current_companion():
            raise Error("the pool was opened before a fork, or its companion has ended: open another")
        return self._number

    def __enter__(self) -> WorkerPool:
        self.start()
        self._ambient.append(_AMBIENT.set(self))
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        _AMBIENT.reset(self._ambient.pop())
        self.stop()

    async def __aenter__(self) -> WorkerPool:
        await self.astart()
        self._ambient.append(_AMBIENT.set(self))
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        _AMBIENT.reset(self._ambient.pop())
        await self.astop()

    def _open(self, broker: int | None) -> Any:
        if self._number is not None:
            raise Error("the pool is open already")
        options = {key: value for key, value in self._options.items() if value is not None}
        if self._discovery is not None:
            options["discovery"] = self._discovery._options(broker)
        return {"pool_open": options}

    def _opened(self, companion: Any, value: Any) -> None:
        self._companion = companion
        self._number = value["pool"]
        self.name = value["name"]

    def _close(self) -> Any:
        number, self._number = self._number, None
        if number is None or self._companion is not _companion.current_companion():
            return None
        limit = self._shutdown_timeout
        timeout = None if limit is None else _milliseconds(limit)
        return {"pool_close": {"pool": number, "timeout_ms": timeout}}


def current_pool() -> WorkerPool:
    """The pool whose `with` block this code is in."""
    pool = _AMBIENT.get()
    if pool is None:
        raise Error("no pool to call in: call in 'async with WorkerPool():', or with '.on(pool)'")
    return pool


def _host_command(app: App | str | None, host: Sequence[str] | None) -> dict[str, Any]:
    """How a worker starts its host: a Python with the modules of this one."""
    argv = list(host) if host is not None else [sys.executable, "-m", "raddle.host", _target(app)]
    path = [os.path.abspath(entry) for entry in sys.path if entry.find(".zip") < 0]
    env = {"PYTHONPATH": os.pathsep.join(path)}
    return {"argv": argv, "directory": os.getcwd(), "env": env}


def _target(app: App | str | None) -> str:
    """The name by which a host finds an app."""
    if isinstance(app, str):
        return app
    if app is None:
        apps = [known for known in all_apps() if known.routines]
        if len(apps) != 1:
            found = "no routines" if not apps else "several apps"
            raise Error(f"this program has {found}: name the app of the pool with WorkerPool(app=…)")
        app = apps[0]
    modules = sorted({routine.function.__module__ for routine in app.routines.values()})
    for module in [*modules, *sys.modules]:
        for attribute, value in vars(sys.modules.get(module, object)).items():
            if value is app and app is not default_app:
                return f"{_importable(module)}:{attribute}"
    if len(modules) == 1:
        return _importable(modules[0])
    raise Error("the routines are in several modules: name the one that imports all with WorkerPool(app=…)")


def _importable(module: str) -> str:
    """The name by which another process imports a module."""
    if module != "__main__":
        return module
    main = sys.modules["__main__"]
    spec = getattr(main, "__spec__", None)
    file = getattr(main, "__file__", None)
    if spec is None and file is None:
        raise Error("other processes cannot import what was typed here: put the routines into a file")
    return str(spec.name) if spec is not None else Path(file or "").stem


def _milliseconds(span: Span) -> int:
    if isinstance(span, str):
        raise TypeError("give the time in seconds or as a timedelta")
    return max(0, round(span_seconds(span) * 1000))

