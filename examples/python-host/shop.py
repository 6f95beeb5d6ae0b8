"""Routines with state: `raddle worker start --host python3 shop.py`."""
import asyncio, os, sqlite3, time

import raddle_host as raddle

db = None


async def startup():
    global db
    db = sqlite3.connect(":memory:", check_same_thread=False)
    db.execute("create table orders (item text)")


async def shutdown():
    db.close()


@raddle.routine
async def order(item, wait=0):
    db.execute("insert into orders values (?)", (item,))
    raddle.progress(50, "stored")
    await asyncio.sleep(wait)
    raddle.log("ordered", item=item)
    return {"pid": os.getpid(), "orders": db.execute("select count(*) from orders").fetchone()[0]}


@raddle.routine
def resize(width, height):
    time.sleep(0.01)
    return width * height


if __name__ == "__main__":
    raddle.main(startup, shutdown)
