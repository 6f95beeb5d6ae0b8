"""Lets Raddle call Python functions: the service `raddle.v1.Worker`, and a file that publishes its address.

    from raddle_worker import routine, serve

    @routine("py.add")
    def add(a, b):
        return a + b

    serve()

A routine is a function (which runs in a thread), a coroutine function, or a generator of either kind, which makes a stream. Arguments and
results are JSON values. No other program depends on this module: it is meant to be read, copied and changed.
"""

import argparse
import asyncio
import contextlib
import contextvars
import inspect
import ipaddress
import json
import os
import pathlib
import signal
import sys
import time
import traceback
import uuid

import grpc
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from raddle.v1 import worker_pb2 as pb
from raddle.v1 import worker_pb2_grpc

PROTOCOL = 1
VERSION = "1"
# The largest message that Raddle sends.
LARGEST = 256 * 1024 * 1024
# The time for cancelled calls to end, and for replies to be sent.
CANCELLED, FAREWELL = 0.5, 1.5
OPTIONS = [
    ("grpc.max_receive_message_length", LARGEST),
    ("grpc.max_send_message_length", LARGEST),
    # Callers send a ping every ten seconds, which gRPC would treat as an attack.
    ("grpc.http2.max_ping_strikes", 0),
    # Two workers on one port would get each other's calls.
    ("grpc.so_reuseport", 0),
]

ROUTINES = {}
CALL = contextvars.ContextVar("call")


def routine(name):
    """Registers a function under this name."""

    def register(function):
        ROUTINES[name] = function
        return function

    return register


class Failed(Exception):
    """Raised by a routine to fail with a value, which the caller gets as its declared error."""

    def __init__(self, value, message=None):
        super().__init__(message or str(value))
        self.value = value


def context(name):
    """The context value that the caller has set under this name, or None."""
    value = CALL.get().context.get(name)
    return None if value is None else json.loads(value)


def serve(arguments=None):
    """Serves all routines until the worker is stopped. `--help` lists the options."""
    asyncio.run(_serve(_options(arguments)))


class Worker(worker_pb2_grpc.WorkerServicer):
    """The gRPC service."""

    def __init__(self):
        self.metadata = pb.WorkerMetadata(
            uid=str(uuid.uuid4()), pid=os.getpid(), version=VERSION, encodings=[pb.ENCODING_JSON]
        )
        self.began = self.idle_since = time.monotonic()
        self.taken = 0
        self.calls = set()
        self.stopping = asyncio.Event()
        self.cancelling = False
        self.over = asyncio.Event()

    async def Dispatch(self, call, rpc):
        function, arguments = await self._admit(call, rpc)
        task = asyncio.current_task()
        self.calls.add(task)
        self.taken += 1
        try:
            await rpc.write(pb.Reply(ack=pb.Ack()))
            exception = await self._run(call, function, arguments, rpc)
            if exception:
                await rpc.write(pb.Reply(exception=exception))
        finally:
            self.calls.discard(task)
            self.idle_since = time.monotonic()

    async def _admit(self, call, rpc):
        """Returns the function and its arguments. A call that is refused ends here with a status."""
        if call.protocol != PROTOCOL:
            await rpc.abort(grpc.StatusCode.FAILED_PRECONDITION, f"the worker speaks version {PROTOCOL} of the protocol")
        if call.encoding != pb.ENCODING_JSON:
            # A caller that supports JSON repeats the call in JSON.
            reads = (("raddle-encodings", "json"),)
            await rpc.abort(grpc.StatusCode.FAILED_PRECONDITION, "the worker reads JSON and nothing else", reads)
        function = ROUTINES.get(call.routine)
        if function is None:
            await rpc.abort(grpc.StatusCode.NOT_FOUND, f"the worker has no routine {call.routine[:128]!r}")
        if self.stopping.is_set():
            await rpc.abort(grpc.StatusCode.UNAVAILABLE, "the worker is stopping")
        try:
            arguments = json.loads(call.arguments, parse_constant=_no_number)
            if not isinstance(arguments, list):
                raise ValueError("they are not an array")
            inspect.signature(function).bind(*arguments)
        except (TypeError, ValueError, RecursionError) as error:
            await rpc.abort(grpc.StatusCode.INVALID_ARGUMENT, f"the arguments do not fit: {error}")
        return function, arguments

    async def _run(self, call, function, arguments, rpc):
        """Sends the results of a function. Returns an exception if it fails."""
        CALL.set(call)
        timeout = call.timeout_ms / 1000 if call.timeout_ms else None
        try:
            async with asyncio.timeout(timeout) as time_left, contextlib.aclosing(_values(function, arguments)) as values:
                async for value in values:
                    try:
                        result = _written(value)
                    except (TypeError, ValueError, RecursionError) as error:
                        return pb.Exception(kind=pb.Exception.UNWRITABLE, message=f"the result cannot be written in JSON: {error}")
                    await rpc.write(pb.Reply(result=result))
        except asyncio.CancelledError:
            # Otherwise the caller has cancelled the call, and expects no reply.
            if not self.cancelling:
                raise
            return pb.Exception(kind=pb.Exception.CANCELLED, message="the worker is stopping")
        except Failed as failed:
            return _failed(failed)
        except BaseException as error:
            if time_left.expired():
                return pb.Exception(kind=pb.Exception.TIMED_OUT)
            return _thrown(error)

    async def Stop(self, request, rpc):
        if request.timeout != request.timeout:
            await rpc.abort(grpc.StatusCode.INVALID_ARGUMENT, "the timeout is not a number")
        # The stop continues if the client disconnects.
        return await asyncio.shield(asyncio.create_task(self.stop(request.timeout)))

    async def stop(self, timeout):
        """Refuses new calls. Calls in flight are cancelled now (0), after this many seconds (positive), or never (negative)."""
        self.stopping.set()
        before = set(self.calls)
        if before and timeout != 0:
            await asyncio.wait(before, timeout=timeout if timeout > 0 else None)
        cancelled = set(self.calls)
        self.cancelling = True
        for call in cancelled:
            call.cancel()
        if cancelled:
            await asyncio.wait(cancelled, timeout=CANCELLED)
        self.over.set()
        return pb.StopReply(ended=len(before - cancelled), cancelled=len(cancelled))

    async def Info(self, request, rpc):
        return pb.InfoReply(
            protocol=PROTOCOL,
            worker=self.metadata,
            in_flight=len(self.calls),
            taken=self.taken,
            uptime=time.monotonic() - self.began,
            stopping=self.stopping.is_set(),
            routines=sorted(ROUTINES),
            encodings=self.metadata.encodings,
        )

    async def Idle(self, request, rpc):
        while self.calls:
            await asyncio.wait(self.calls)
        return pb.IdleReply(idle=time.monotonic() - self.idle_since)


async def _values(function, arguments):
    """The result of a function, or the items that it yields."""
    if inspect.isasyncgenfunction(function):
        async with contextlib.aclosing(function(*arguments)) as items:
            async for item in items:
                yield item
    elif inspect.isgeneratorfunction(function):
        items, end = function(*arguments), object()
        try:
            while (item := await asyncio.to_thread(next, items, end)) is not end:
                yield item
        finally:
            # A generator that is running in its thread cannot be closed.
            if not items.gi_running:
                items.close()
    elif inspect.iscoroutinefunction(function):
        yield await function(*arguments)
    else:
        yield await asyncio.to_thread(function, *arguments)


def _written(value):
    return json.dumps(value, allow_nan=False, ensure_ascii=False, separators=(",", ":")).encode()


def _no_number(text):
    raise ValueError(f"{text} is not a number in JSON")


def _failed(failed):
    """The declared error of a routine, or its message if the value is not JSON."""
    value = b""
    with contextlib.suppress(TypeError, ValueError, RecursionError):
        value = _written(failed.value)
    return pb.Exception(kind=pb.Exception.FAILED, message=str(failed), value=value)


def _thrown(error):
    """An unexpected exception, which is reported like a panic in Rust."""
    frames = traceback.extract_tb(error.__traceback__)
    return pb.Exception(
        kind=pb.Exception.PANICKED,
        message=f"{type(error).__name__}: {error}",
        place=f"{frames[-1].filename}:{frames[-1].lineno}" if frames else "",
        backtrace="".join(traceback.format_exception(error)),
    )


async def _serve(options):
    worker = Worker()
    server = grpc.aio.server(options=OPTIONS)
    worker_pb2_grpc.add_WorkerServicer_to_server(worker, server)
    healthy = health.aio.HealthServicer()
    health_pb2_grpc.add_HealthServicer_to_server(healthy, server)
    worker.metadata.address, worker.metadata.secure = _listen(server, options)
    worker.metadata.tags.extend(options.tag)
    await server.start()
    await _set_health(healthy, health_pb2.HealthCheckResponse.SERVING)
    _handle_signals(worker)
    entry = _publish(options.directory, worker.metadata)
    try:
        print(f"serving at {worker.metadata.address}", flush=True)
        await worker.stopping.wait()
    finally:
        # Unpublish the worker as soon as it refuses calls.
        entry.unlink(missing_ok=True)
    await _set_health(healthy, health_pb2.HealthCheckResponse.NOT_SERVING)
    await worker.over.wait()
    await server.stop(FAREWELL)
    sys.stdout.flush()
    # A function in a thread cannot be stopped, and the end of the loop would wait for it.
    os._exit(0)


async def _set_health(healthy, status):
    for service in "", "raddle.v1.Worker":
        await healthy.set(service, status)


def _handle_signals(worker):
    """SIGTERM cancels calls in flight. SIGINT waits for them; a second signal cancels them."""
    loop, stops = asyncio.get_running_loop(), []

    def stop(timeout):
        stops.append(loop.create_task(worker.stop(0 if stops else timeout)))

    loop.add_signal_handler(signal.SIGTERM, stop, 0)
    loop.add_signal_handler(signal.SIGINT, stop, -1)


def _listen(server, options):
    """Opens the port. Returns its address, and whether callers need certificates."""
    secure = options.cert is not None
    if secure:
        read = lambda path: path.read_bytes()
        credentials = grpc.ssl_server_credentials(
            [(read(options.key), read(options.cert))], root_certificates=read(options.ca), require_client_auth=True
        )
        port = server.add_secure_port(options.bind, credentials)
    else:
        port = server.add_insecure_port(options.bind)
    if options.bind.startswith("unix:"):
        return options.bind, secure
    host, _ = options.bind.rsplit(":", 1)
    return f"{host}:{port}", secure


def _publish(directory, metadata):
    """Publishes the worker for Raddle's `FileDiscovery`: the rename makes the complete file appear at once."""
    entry = {
        "uid": metadata.uid,
        "address": metadata.address,
        "pid": metadata.pid,
        "version": metadata.version,
        "tags": sorted(metadata.tags),
        "secure": metadata.secure,
        "encodings": ["json"],
    }
    directory.mkdir(parents=True, exist_ok=True)
    draft, name = directory / f".{metadata.uid}", directory / f"{metadata.uid}.json"
    draft.write_text(json.dumps(entry) + "\n")
    return draft.rename(name)


def _options(arguments):
    parser = argparse.ArgumentParser(description="A worker whose routines are Python functions.")
    parser.add_argument("directory", type=pathlib.Path, help="the directory in which the worker publishes itself")
    parser.add_argument("--bind", default="127.0.0.1:0", metavar="ADDRESS", help="HOST:PORT, where port 0 is any, or unix:/PATH")
    parser.add_argument("--tag", action="append", default=[], help="a tag for callers to select workers by; can be repeated")
    parser.add_argument("--insecure", action="store_true", help="serve other machines without TLS")
    for name, description in ("ca", "the CA of the callers"), ("cert", "the certificate of the worker"), ("key", "its key"):
        parser.add_argument(f"--{name}", type=pathlib.Path, metavar="FILE", help=f"a PEM file: {description}")
    options = parser.parse_args(arguments)
    if len({options.ca is None, options.cert is None, options.key is None}) > 1:
        parser.error("give all of --ca, --cert and --key, or none")
    if options.cert is None and not options.insecure and not _is_local(options.bind):
        parser.error("other machines could call the worker: give --ca, --cert and --key, or --insecure")
    return options


def _is_local(bind):
    """Whether only this machine can reach an address."""
    if bind.startswith("unix:"):
        return True
    host = bind.rsplit(":", 1)[0].strip("[]")
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
