"""A host that misbehaves: each routine in its own way, and each MODE from the start."""
import asyncio, faulthandler, os, signal, struct, subprocess, sys, time

sys.path.insert(0, os.environ["HOST_LIBRARY"])
import raddle_host as raddle

mode = sys.argv[1] if len(sys.argv) > 1 else "good"
faulthandler.register(signal.SIGUSR2, all_threads=True)


def raw(data):
    os.write(3, data)


if mode == "mute":
    time.sleep(3600)
if mode == "garbage":
    raw(b"GET / HTTP/1.1\r\n\r\n")
    time.sleep(3600)
if mode == "gibibyte":
    raw(struct.pack("<I", 1 << 30) + b"x" * 100)
    time.sleep(3600)
if mode == "version":
    body = b'{"hello":{"protocol":2,"routines":{"good":{}}}}'
    raw(struct.pack("<I", len(body)) + body)
    time.sleep(3600)
if mode == "killed-once" and not os.path.exists("killed"):
    open("killed", "w").close()
    os.kill(os.getpid(), signal.SIGKILL)
if mode == "fail":
    sys.exit("no database here")


@raddle.routine
async def good(wait=0):
    await asyncio.sleep(wait)
    return os.getpid()


@raddle.routine
async def stranger():
    raddle.host.send(b"1", result={"id": 123456})
    await asyncio.sleep(3600)


@raddle.routine
async def twice():
    raddle.host.send(b"1", result={"id": raddle.RUN.get()})
    return 2


@raddle.routine
async def nonsense():
    raw(struct.pack("<I", 2) + b"{}")
    await asyncio.sleep(3600)


@raddle.routine
async def huge():
    raw(struct.pack("<I", 1 << 30))
    await asyncio.sleep(3600)


@raddle.routine
async def flood(count):
    for n in range(count):
        raddle.progress(n % 100, "still here")
        raddle.log("line %d" % n)
    return count


@raddle.routine
async def leave():
    os._exit(0)


@raddle.routine
async def children():
    return subprocess.Popen(["sleep", "3600"], start_new_session=True).pid


@raddle.routine
async def deaf():
    while True:
        try:
            await asyncio.sleep(3600)
        except asyncio.CancelledError:
            pass


@raddle.routine
async def jam(seconds):
    time.sleep(seconds)
    return os.getpid()


@raddle.routine
async def speak(words):
    print(words, flush=True)
    await asyncio.sleep(0.2)


@raddle.routine
async def segfault():
    os.kill(os.getpid(), signal.SIGSEGV)
    await asyncio.sleep(3600)


@raddle.routine
async def fail():
    raise ValueError("not like this")


@raddle.routine
async def unreadable():
    raddle.host.send(b"{not json", result={"id": raddle.RUN.get()})
    await asyncio.sleep(3600)


async def startup():
    if mode == "brief":
        # Exits while it has nothing to do.
        asyncio.get_running_loop().call_later(0.3, os._exit, 0)


raddle.main(startup)
