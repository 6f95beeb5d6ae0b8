"""No-op tasks of one peer on Redis: all are submitted, then a worker with two processes runs them.

The tasks near the first tenth and the end note the time in Redis; the others do nothing. The rate is
that between the two. Results are not stored, where a peer lets one choose.
"""
import asyncio, os, pathlib, signal, subprocess, sys, time

import redis

PEER, TASKS, URL = os.environ["PEER"], int(os.environ["PEER_TASKS"]), os.environ["PEER_REDIS"]
FIRST, LAST = TASKS // 10, 50
bin = pathlib.Path(sys.executable).parent
client = redis.Redis.from_url(URL)


def note(number):
    if number == FIRST:
        client.set(f"peer:{PEER}:first", time.monotonic())
    elif number >= TASKS - LAST:
        client.rpush(f"peer:{PEER}:last", time.monotonic())


if PEER == "celery":
    from celery import Celery

    app = Celery("peers", broker=URL)
    app.conf.task_ignore_result = True

    @app.task(name="noop")
    def noop(number):
        note(number)

    flags = ["--pool", "prefork", "--concurrency", "2", "--loglevel", "ERROR"]
    workers = [[bin / "celery", "-A", "peers", "worker", *flags, "--without-gossip", "--without-mingle"]]
    submit = lambda: [noop.delay(number) for number in range(TASKS)]
elif PEER == "dramatiq":
    import dramatiq
    from dramatiq.brokers.redis import RedisBroker

    dramatiq.set_broker(RedisBroker(url=URL))

    @dramatiq.actor
    def noop(number):
        note(number)

    workers = [[bin / "dramatiq", "peers", "--processes", "2"]]
    submit = lambda: [noop.send(number) for number in range(TASKS)]
elif PEER == "taskiq":
    from taskiq_redis import ListQueueBroker

    broker = ListQueueBroker(URL)

    @broker.task
    async def noop(number: int):
        note(number)

    async def kick():
        await broker.startup()
        for number in range(TASKS):
            await noop.kiq(number)
        await broker.shutdown()

    workers = [[bin / "taskiq", "worker", "peers:broker", "--workers", "2", "--log-level", "ERROR"]]
    submit = lambda: asyncio.run(kick())
elif PEER == "rq":
    from rq import Queue

    def noop(number):
        note(number)

    def submit():
        import peers

        queue = Queue(connection=client)
        for number in range(TASKS):
            queue.enqueue(peers.noop, number, result_ttl=0)

    workers = [[bin / "rq", "worker", "--url", URL, "--quiet"]] * 2


def main():
    submit()
    processes = [
        subprocess.Popen(list(map(str, worker)), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True)
        for worker in workers
    ]
    try:
        deadline = time.monotonic() + 180
        while client.llen(f"peer:{PEER}:last") < LAST:
            if time.monotonic() > deadline:
                sys.exit(f"{PEER} has not finished {TASKS} tasks in time")
            time.sleep(0.02)
        first = float(client.get(f"peer:{PEER}:first"))
        last = max(map(float, client.lrange(f"peer:{PEER}:last", 0, -1)))
    finally:
        for process in processes:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    print((TASKS - FIRST) / (last - first))


if __name__ == "__main__":
    main()
