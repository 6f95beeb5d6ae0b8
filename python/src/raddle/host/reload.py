"""Notices that a file of the app has changed. The host then ends, and the worker starts another."""

from __future__ import annotations

import asyncio
import os
import sys
import sysconfig

#: How soon a change is noticed.
_EVERY = 0.5


async def wait_for_change() -> str:
    """Returns the first file of the app that has changed."""
    before = _modified()
    while True:
        await asyncio.sleep(_EVERY)
        now = _modified()
        for path, modified in now.items():
            if before.setdefault(path, modified) != modified:
                return path


def _modified() -> dict[str, int]:
    """The modification times of imported files that are not of the environment."""
    installed = tuple({sysconfig.get_path(name) for name in ("stdlib", "purelib", "platlib")})
    times = {}
    for module in list(sys.modules.values()):
        path = getattr(module, "__file__", None)
        if path and not path.startswith(installed):
            try:
                times[path] = os.stat(path).st_mtime_ns
            except OSError:
                continue
    return times
