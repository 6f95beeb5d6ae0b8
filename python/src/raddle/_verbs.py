"""What can be done with a routine: call it, submit it, run it here."""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any, Generic, TypeVar, cast

if TYPE_CHECKING:
    from collections.abc import Callable

    from typing_extensions import ParamSpec

    P = ParamSpec("P")
else:
    from typing import ParamSpec

    P = ParamSpec("P")

T = TypeVar("T")


class RoutineVerbs(Generic[P, T]):
    """Verbs of a routine that returns one value."""

    function: Callable[..., Any]

    async def here(self, *args: P.args, **kwargs: P.kwargs) -> T:
        """Runs the routine in this process."""
        value = self.function(*args, **kwargs)
        return cast(T, await value if inspect.isawaitable(value) else value)


class StreamVerbs(Generic[P, T]):
    """Verbs of a routine that yields items."""

    function: Callable[..., Any]
