"""Where the program `raddle` is."""

from __future__ import annotations

import os
import shutil
import sys
import sysconfig

from ._errors import Error


def find_binary() -> str:
    """The program of `RADDLE_BINARY`, of this environment, or on the path."""
    chosen = os.environ.get("RADDLE_BINARY")
    if chosen:
        return chosen
    for directory in (os.path.dirname(sys.executable), sysconfig.get_path("scripts")):
        path = os.path.join(directory, "raddle")
        if os.access(path, os.X_OK):
            return path
    found = shutil.which("raddle")
    if found is None:
        raise Error("there is no program 'raddle' beside this Python: run 'pip install raddle'")
    return found
