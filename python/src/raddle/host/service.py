"""The service of a host: reads messages, runs attempts, answers each once."""

from __future__ import annotations

import asyncio
import atexit
import contextvars
import faulthandler
import functools
import gc
import inspect
import os
import platform
import signal
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from .._app import App, is_async
from .._context import _CURRENT
from .._handler import Handler, Job
from .._routine import AnyRoutine
from . import messages
from .attempt import Attempt
from .connection import Connection
from .handlers import decode_job
from .loader import CannotLoad, load_app
from .main_thread import MainThread, Protection
from .output import capture_output
from .reload import wait_for_change


class Host:
    """Runs the routines of one app."""

    def __init__(self, app: App, connection: Connection, reload: bool = False) -> None:
        self._app = app
        self._reload = reload
        self._connection = connection
        self._attempts: dict[int, Attempt] = {}
        self._posted = bytearray()
        self._decoder = messages.Decoder()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._loop_thread = 0
        self._is_idle = asyncio.Event()
        self._stopped = asyncio.Event()
        self._is_ready = False
        self._main: MainThread | None = None
        if needs_main_thread(app):
            self._main = MainThread()
            connection.protection = Protection(self._main)
        self._pools: dict[str, ThreadPoolExecutor] = {}

    def run(self) -> None:
        """Serves until the worker stops this host."""
        if self._main is None:
            asyncio.run(self._serve())
            return
        thread = threading.Thread(target=self._serve_on_thread, name="raddle-loop", daemon=True)
        thread.start()
        self._main.run()
        thread.join()

    def post(self, data: bytes) -> None:
        """Sends a message, from the event loop together with others."""
        if threading.get_ident() != self._loop_thread or self._loop is None:
            self._connection.send(data)
            return
        if not self._posted:
            self._loop.call_soon(self._flush)
        self._posted += data

    def call_later(self, seconds: float, function: Callable[[], None]) -> None:
        """Calls a function on the event loop after a time. From any thread."""
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self._loop.call_later, seconds, function)

    def _flush(self) -> None:
        if self._posted:
            data = bytes(self._posted)
            self._posted.clear()
            self._connection.send(data)

    def _serve_on_thread(self) -> None:
        try:
            asyncio.run(self._serve())
        except BaseException:
            sys.excepthook(*sys.exc_info())
            os._exit(1)
        finally:
            assert self._main is not None
            self._main.close()

    async def _serve(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._loop_thread = threading.get_ident()
        self._is_idle.set()
        self._connection.send(messages.message("hello", **self._hello()))
        if os.environ.get("RADDLE_PROBE"):
            # The worker only wants to know the routines.
            return
        try:
            for hook in self._app.startup_hooks:
                await self._run_hook(hook)
        except Exception as error:
            self._connection.send(messages.message("failed", message=f"{type(error).__name__}: {error}"))
            sys.excepthook(*sys.exc_info())
            return
        # Imported modules stay: the collector need not look at them again.
        gc.collect()
        gc.freeze()
        self._is_ready = True
        self._loop.add_reader(self._connection.fileno(), self._read)
        self._connection.send(messages.message("ready"))
        reloading = self._loop.create_task(self._stop_on_change()) if self._reload else None
        await self._stopped.wait()
        await self._is_idle.wait()
        if reloading is not None:
            reloading.cancel()
        for hook in self._app.shutdown_hooks:
            try:
                await self._run_hook(hook)
            except Exception:
                sys.excepthook(*sys.exc_info())
        self._loop.remove_reader(self._connection.fileno())
        self._flush()

    async def _stop_on_change(self) -> None:
        path = await wait_for_change()
        print(f"{path} has changed: another host takes over", file=sys.stderr)
        # Attempts that the worker sends until the end of this process run again in another.
        self._loop_of().remove_reader(self._connection.fileno())
        self._stopped.set()

    def _loop_of(self) -> asyncio.AbstractEventLoop:
        assert self._loop is not None
        return self._loop

    def _hello(self) -> dict[str, Any]:
        kinds = {"async": "async", "plain": "plain", "threads": "async", "stream": "stream"}
        routines = {name: {"kind": kinds[routine.kind]} for name, routine in self._app.routines.items()}
        return {
            "protocol": messages.PROTOCOL,
            "language": f"python {platform.python_version()}",
            "routines": routines,
            "threads": 1,
            "encodings": ["messagepack", "json"],
        }

    async def _run_hook(self, hook: Callable[[], Any]) -> None:
        """Runs a hook where routines of its kind run."""
        if is_async(hook) or self._main is None:
            value = hook()
            if inspect.isawaitable(value):
                await value
            return
        loop, done = asyncio.get_running_loop(), asyncio.get_running_loop().create_future()

        def job() -> None:
            try:
                hook()
            except BaseException as error:
                loop.call_soon_threadsafe(done.set_exception, error)
            else:
                loop.call_soon_threadsafe(done.set_result, None)

        self._main.submit(job)
        await done

    def _read(self) -> None:
        data = self._connection.receive()
        if data is None:
            return
        if not data:
            # The worker is gone.
            os._exit(1)
        for message, payload in self._decoder.feed(data):
            if message.start is not None:
                self._start(message.start, payload)
            elif message.ping is not None:
                self.post(messages.message("pong", n=message.ping.n))
            elif message.cancel is not None:
                self._cancel(message.cancel)
            elif message.credit is not None:
                self._add_credit(message.credit)
            elif message.stop is not None:
                self._stopped.set()
        # Acknowledgements are sent before user code runs.
        self._flush()

    def _start(self, start: messages.Start, payload: bytes) -> None:
        target: AnyRoutine | Handler | None
        if start.handler:
            target = self._app.handlers.get(start.routine)
        else:
            target = self._app.routines.get(start.routine)
        retry = target.options.retry if isinstance(target, AnyRoutine) else None
        attempt = Attempt(self, start, retry)
        self._attempts[start.id] = attempt
        self._is_idle.clear()
        if target is None:
            self._finish(attempt, attempt.fail(LookupError(f"this app has no '{start.routine}'")))
            return
        call, kind = self._prepare(target, start, payload, attempt)
        if self._main is not None and kind == "plain":
            context = contextvars.copy_context()
            self._main.submit(functools.partial(self._run_plain, attempt, call, context))
            return
        if kind == "threads":
            assert isinstance(target, AnyRoutine)
            job = functools.partial(self._run_on_thread, attempt, call, contextvars.copy_context())
            self._pool(target).submit(job)
            return
        self._posted += messages.ack(attempt.id)
        attempt.task = asyncio.get_running_loop().create_task(self._run_async(attempt, call))

    def _prepare(
        self, target: AnyRoutine | Handler, start: messages.Start, payload: bytes, attempt: Attempt
    ) -> tuple[Callable[[], Any], str]:
        """The function that runs the code of the user, and where it runs."""
        if isinstance(target, Handler):
            handler = target

            def handle() -> Any:
                job: Job = decode_job(payload)
                if not handler.accepts(job):
                    raise LookupError(f"the handler '{handler.name}' does not accept the task")
                return handler.handle(job)

            return handle, "async" if is_async(handler.handle) else "plain"
        routine = target

        def call() -> Any:
            args, kwargs = routine.signature.decode(payload, start.kwargs, attempt.encoding)
            return routine.function(*args, **kwargs)

        if routine.kind != "stream":
            return call, routine.kind
        if inspect.isasyncgenfunction(routine.function):
            return functools.partial(self._stream, attempt, call), "async"
        return functools.partial(self._stream_plain, attempt, call), "plain"

    async def _run_async(self, attempt: Attempt, call: Callable[[], Any]) -> None:
        _CURRENT.set(attempt)
        try:
            value = call()
            answer = attempt.succeed(await value if inspect.isawaitable(value) else value)
        except BaseException as error:
            # Also SystemExit and KeyboardInterrupt: they end the attempt, not the host.
            answer = attempt.fail(error)
        self._finish(attempt, answer)

    def _run_plain(
        self, attempt: Attempt, call: Callable[[], Any], context: contextvars.Context
    ) -> None:
        assert self._main is not None
        context.run(_CURRENT.set, attempt)
        self._connection.send(messages.ack(attempt.id))
        answer = self._main.call(attempt, functools.partial(context.run, call))
        self._forget_soon(attempt)
        self._connection.send(answer)

    def _run_on_thread(
        self, attempt: Attempt, call: Callable[[], Any], context: contextvars.Context
    ) -> None:
        context.run(_CURRENT.set, attempt)
        self._connection.send(messages.ack(attempt.id))
        try:
            answer = attempt.succeed(context.run(call))
        except BaseException as error:
            answer = attempt.fail(error)
        self._forget_soon(attempt)
        self._connection.send(answer)

    async def _stream(self, attempt: Attempt, call: Callable[[], Any]) -> Any:
        items = call()
        try:
            if not attempt.is_call:
                return [item async for item in items]
            async for item in items:
                await attempt.async_credit.acquire()
                self.post(attempt.item(item))
            return None
        finally:
            await items.aclose()

    def _stream_plain(self, attempt: Attempt, call: Callable[[], Any]) -> Any:
        items = call()
        try:
            if not attempt.is_call:
                return list(items)
            for item in items:
                attempt.credit.acquire()
                self._connection.send(attempt.item(item))
            return None
        finally:
            items.close()

    def _cancel(self, cancel: messages.Cancel) -> None:
        attempt = self._attempts.get(cancel.id)
        if attempt is None:
            return
        attempt.cancel_reason = cancel.reason
        if attempt.task is not None:
            attempt.task.cancel()
        elif self._main is not None:
            self._main.interrupt(attempt)

    def _add_credit(self, credit: messages.Credit) -> None:
        attempt = self._attempts.get(credit.id)
        if attempt is not None and credit.items > 0:
            attempt.credit.release(credit.items)
            for _ in range(credit.items):
                attempt.async_credit.release()

    def _finish(self, attempt: Attempt, answer: bytes) -> None:
        self._forget(attempt)
        self.post(answer)

    def _forget(self, attempt: Attempt) -> None:
        self._attempts.pop(attempt.id, None)
        if not self._attempts:
            self._is_idle.set()

    def _forget_soon(self, attempt: Attempt) -> None:
        """Forgets an attempt that ran on another thread."""
        assert self._loop is not None
        self._loop.call_soon_threadsafe(self._forget, attempt)

    def _pool(self, routine: AnyRoutine) -> ThreadPoolExecutor:
        pool = self._pools.get(routine.name)
        if pool is None:
            pool = ThreadPoolExecutor(routine.threads, thread_name_prefix=f"raddle-{routine.name}")
            self._pools[routine.name] = pool
        return pool


def needs_main_thread(app: App) -> bool:
    """Whether the app has code that blocks and can be interrupted."""
    if any(not is_async(handler.handle) for handler in app.handlers.values()):
        return True
    return any(
        routine.kind == "plain" or inspect.isgeneratorfunction(routine.function)
        for routine in app.routines.values()
    )


def main() -> None:
    """Runs the host of the app that the command line names."""
    words = [word for word in sys.argv[1:] if word != "--reload"]
    if not words:
        sys.exit("usage: python -m raddle.host MODULE:APP, as 'raddle worker start --python' does")
    # The worker decides when this process ends.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    faulthandler.enable()
    faulthandler.register(signal.SIGUSR2, all_threads=True)
    connection = Connection()
    try:
        app = load_app(words[0], words[1] if len(words) > 1 else None)
    except CannotLoad as error:
        sys.exit(str(error))
    problems = app.check()
    if problems:
        sys.exit("\n".join(problems))
    if not app.routines and not app.handlers:
        sys.exit(f"'{words[0]}' has no routines: decorate a function with @app.routine")
    capture_output()
    Host(app, connection, reload="--reload" in sys.argv).run()
    sys.stdout.flush()
    sys.stderr.flush()
    # Threads that routines have left behind do not keep the process.
    atexit._run_exitfuncs()
    os._exit(0)
