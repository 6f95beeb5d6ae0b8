"""Exceptions that travel: described where they are raised, rebuilt where they are awaited.

Nothing is imported because data names it: a class is rebuilt only if its module is imported
already. Otherwise the caller gets a `RemoteError`.
"""

from __future__ import annotations

import sys
import traceback
from typing import Any

from ._errors import RemoteError, RemoteTraceback

#: The key of a description in the value of a failure.
KEY = "python"
_MAX_DEPTH = 16
_MAX_TRACEBACK = 16 * 1024


def describe_exception(error: BaseException, depth: int = 0) -> dict[str, Any]:
    """The description of an exception, as JSON."""
    kind = type(error)
    name = kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}:{kind.__qualname__}"
    description: dict[str, Any] = {"type": name, "message": _text(error)}
    args = list(error.args)
    inner = getattr(error, "exceptions", None)
    if isinstance(inner, tuple) and depth < _MAX_DEPTH:
        description["group"] = [describe_exception(one, depth + 1) for one in inner]
        description["args"] = args[:1]
    elif _is_plain(args, 0):
        description["args"] = args
    notes = getattr(error, "__notes__", None)
    if isinstance(notes, list):
        description["notes"] = [str(note) for note in notes[:64]]
    if depth == 0:
        lines = traceback.format_exception(kind, error, error.__traceback__)
        description["traceback"] = "".join(lines)[-_MAX_TRACEBACK:]
    return description


def rebuild(description: dict[str, Any]) -> Exception:
    """The exception of a description."""
    error = _construct(description, 0)
    for note in description.get("notes") or ():
        if hasattr(error, "add_note"):
            error.add_note(note)
    text = description.get("traceback")
    if text:
        error.__cause__ = RemoteTraceback(text)
    return error


def find_description(value: Any) -> dict[str, Any] | None:
    """The description in the value of a failure, if there is one."""
    found = value.get(KEY) if isinstance(value, dict) else None
    return found if isinstance(found, dict) and isinstance(found.get("type"), str) else None


def _construct(description: dict[str, Any], depth: int) -> Exception:
    name = description["type"]
    kind = _imported_class(name)
    args = description.get("args")
    group = description.get("group")
    if kind is not None and isinstance(args, list) and depth < _MAX_DEPTH:
        if isinstance(group, list):
            args = [*args[:1], [_construct(one, depth + 1) for one in group]]
        try:
            return kind(*args)
        except Exception:
            pass
    return RemoteError(str(description.get("message", "")), name)


def _imported_class(name: str) -> type[Exception] | None:
    """The class of this name, if its module is imported and it is an exception."""
    module, _, path = name.rpartition(":")
    found: Any = sys.modules.get(module or "builtins")
    for part in path.split("."):
        found = getattr(found, part, None)
    if isinstance(found, type) and issubclass(found, Exception):
        return found
    return None


def _text(error: BaseException) -> str:
    try:
        return str(error)
    except Exception:
        return "its text cannot be made"


def _is_plain(value: Any, depth: int) -> bool:
    """Whether a value is the same after a way through JSON."""
    if value is None or type(value) in (bool, int, float, str):
        return True
    if depth >= _MAX_DEPTH:
        return False
    if type(value) is list:
        return all(_is_plain(item, depth + 1) for item in value)
    if type(value) is dict:
        return all(type(key) is str and _is_plain(item, depth + 1) for key, item in value.items())
    return False
