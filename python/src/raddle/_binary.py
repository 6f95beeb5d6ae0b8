"""Where the program `raddle` is."""

from __future__ import annotations

import os
import sys

from ._errors import Error


def find_binary() -> str:
    """The program of `RADDLE_BINARY`, of this environment, or on the path."""
    chosen = os.environ.get("RADDLE_BINARY")
    if chosen:
        return chosen
    # Only here: their imports take longer than all of this.
    import shutil
    import sysconfig

    for directory in (os.path.dirname(sys.executable), sysconfig.get_path("scripts")):
        path = os.path.join(directory, "raddle")
        if os.access(path, os.X_OK):
            return path
    found = shutil.which("raddle")
    if found is None:
        raise Error("there is no program 'raddle' beside this Python: run 'pip install raddle'")
    return found
