"""Exceptions that travel."""

from __future__ import annotations

import json
import sys

import pytest

import raddle
from raddle._remote import describe_exception, rebuild


class Gone(Exception):
    pass


class Picky(Exception):
    def __init__(self, name: str, *, why: str) -> None:
        super().__init__(name)


def there_and_back(error: BaseException) -> Exception:
    try:
        raise error
    except BaseException as raised:
        return rebuild(json.loads(json.dumps(describe_exception(raised))))


def test_a_class_that_is_imported_is_rebuilt_with_its_arguments() -> None:
    error = there_and_back(Gone("it", {"n": [1, None]}))
    assert type(error) is Gone and error.args == ("it", {"n": [1, None]})
    assert "raise error" in str(error.__cause__), "the cause is the remote traceback"
    assert type(there_and_back(KeyError("k"))) is KeyError


def test_what_cannot_be_rebuilt_is_a_remote_error() -> None:
    for odd in (Picky("a", why="b"), Gone(object())):
        error = there_and_back(odd)
        assert isinstance(error, raddle.RemoteError)
        assert error.type_name.endswith(type(odd).__name__)


def test_nothing_is_imported_and_only_exceptions_are_built() -> None:
    sys.modules.pop("this", None)
    for name in ("this:Zen", "os:system", "subprocess:Popen", "SystemExit", "KeyboardInterrupt", ":", "os:path.join"):
        error = rebuild({"type": name, "args": ["true"], "message": "m"})
        assert type(error) is raddle.RemoteError, name
    assert "this" not in sys.modules


@pytest.mark.skipif(sys.version_info < (3, 11), reason="groups and notes came with 3.11")
def test_groups_and_notes_are_kept() -> None:
    inner = Gone("a")
    group = ExceptionGroup("many", [inner, ValueError(1)])  # noqa: F821
    group.add_note("look")
    error = there_and_back(group)
    assert [type(one) for one in error.exceptions] == [Gone, ValueError]  # type: ignore[attr-defined]
    assert error.__notes__ == ["look"]  # type: ignore[attr-defined]
