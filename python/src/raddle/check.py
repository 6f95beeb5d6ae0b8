"""`raddle python check`: what would fail later in an app, said now."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from ._app import App
from .groups import ProcessManager
from .host.loader import CannotLoad, load_object

#: Variables that keep libraries from starting threads when they are imported.
_VARIABLES = "OPENBLAS_NUM_THREADS=1, OMP_NUM_THREADS=1"


def check(name: str) -> dict[str, Any]:
    """The routines of an app, its problems, and what to know about it."""
    before = set(sys.modules)
    found = load_object(name)
    apps: list[App] = []
    if isinstance(found, ProcessManager):
        apps = [found.app_of(process) for process in found.processes]
    elif isinstance(found, App):
        apps = [found]
    else:
        raise CannotLoad(f"'{name}' is neither a raddle.App nor a raddle.ProcessManager")
    routines = {at.name: at.kind for app in apps for at in app.routines.values()}
    problems = [problem for app in apps for problem in app.check()]
    if not routines:
        problems.append(f"'{name}' has no routines: decorate a function with @app.routine")
    threads = len(list(Path("/proc/self/task").iterdir()))
    notes = []
    if threads > 1:
        imported = {module.partition(".")[0] for module in set(sys.modules) - before}
        libraries = sorted(one for one in imported if one not in sys.stdlib_module_names)
        notes.append(
            f"its imports have started {threads - 1} threads ({', '.join(libraries)}); "
            f"every process of the app has them: to have fewer, set {_VARIABLES}"
        )
    return {"app": name, "routines": routines, "problems": problems, "notes": notes}


def main() -> None:
    """Prints what is to be said about an app."""
    words = [word for word in sys.argv[1:] if word != "--json"]
    if len(words) != 1:
        sys.exit("usage: raddle python check MODULE:APP")
    try:
        found = check(words[0])
    except CannotLoad as error:
        found = {"app": words[0], "routines": {}, "problems": [str(error)], "notes": []}
    if "--json" in sys.argv:
        print(json.dumps(found))
    else:
        for routine, kind in found["routines"].items():
            print(f"{routine}  {kind}")
        for line in found["problems"] + found["notes"]:
            print(f"raddle: {line}", file=sys.stderr)
    sys.exit(1 if found["problems"] else 0)


if __name__ == "__main__":
    main()
