"""A Raddle host in Python: `async def` and `def` routines in one warm process. Standard library only."""
import asyncio, contextvars, inspect, json, os, socket, struct, sys

ROUTINES, RUN = {}, contextvars.ContextVar("run")
host = None


def routine(function):
    ROUTINES[function.__name__] = function
    return function


def progress(percent, message=""):
    host.send(progress={"id": RUN.get(), "percent": percent, "message": message})


def log(message, level="info", **fields):
    host.send(log={"id": RUN.get(), "level": level, "message": message, "fields": fields})


def chain(spec):
    host.send(chain={"id": RUN.get(), "spec": spec})


class Host:
    async def serve(self, startup=None, shutdown=None):
        os.set_inheritable(3, False)
        reader, self.writer = await asyncio.open_connection(sock=socket.socket(fileno=3))
        self.loop, self.running = asyncio.get_running_loop(), {}
        kinds = {name: "async" if inspect.iscoroutinefunction(f) else "plain" for name, f in ROUTINES.items()}
        self.send(hello={"protocol": 1, "language": "python " + sys.version.split()[0],
                         "routines": {name: {"kind": kind} for name, kind in kinds.items()}})
        try:
            await startup() if startup else None
        except Exception as error:
            self.send(failed={"message": repr(error)})
            return await self.writer.drain()
        self.send(ready={})
        while head := await reader.read(4):
            head += await reader.readexactly(4 - len(head))
            body = await reader.readexactly(struct.unpack("<I", head)[0])
            message, _, payload = body.partition(b"\n")
            (kind, message), = json.loads(message).items()
            if kind == "start":
                self.send(ack={"id": message["id"]})
                self.running[message["id"]] = asyncio.create_task(self.run(message, payload))
            elif kind == "cancel" and message["id"] in self.running:
                self.running[message["id"]].cancel()
            elif kind == "ping":
                self.send(pong=message)
            elif kind == "stop":
                await asyncio.gather(*self.running.values(), return_exceptions=True)
                return await shutdown() if shutdown else None

    async def run(self, start, payload):
        RUN.set(start["id"])
        try:
            function, arguments = ROUTINES[start["routine"]], json.loads(payload)
            arguments = [arguments] if start.get("handler") else arguments
            if inspect.iscoroutinefunction(function):
                value = await function(*arguments, **start.get("kwargs", {}))
            else:
                value = await asyncio.to_thread(function, *arguments, **start.get("kwargs", {}))
            self.send(json.dumps(value).encode(), result={"id": start["id"]})
        except (Exception, asyncio.CancelledError) as error:
            self.send(error={"id": start["id"], "type": type(error).__name__, "message": str(error)})
        finally:
            del self.running[start["id"]]

    def send(self, payload=None, **message):
        body = json.dumps(message).encode() + (b"" if payload is None else b"\n" + payload)
        self.loop.call_soon_threadsafe(self.writer.write, struct.pack("<I", len(body)) + body)


def main(startup=None, shutdown=None):
    global host
    host = Host()
    asyncio.run(host.serve(startup, shutdown))
