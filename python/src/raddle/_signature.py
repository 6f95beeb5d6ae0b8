"""The signature of a routine: arguments are bound where they are given and checked on arrival."""

from __future__ import annotations

import inspect
import re
import typing
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import msgspec

from ._codec import Encoding, convert, decoder
from ._errors import Arguments

_POSITIONAL = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
_ITERATORS = ("AsyncIterator", "AsyncGenerator", "AsyncIterable", "Iterator", "Generator", "Iterable")


class Signature:
    """The parameters of a function, with the types of their annotations."""

    def __init__(self, name: str, function: Callable[..., Any], skip: Iterable[str] = ()) -> None:
        self.name = name
        #: Why the annotations cannot be used, if they cannot.
        self.problem: str | None = None
        hints = self._hints(function)
        parameters = [at for at in inspect.signature(function).parameters.values() if at.name not in skip]
        self.positional = [at.name for at in parameters if at.kind in _POSITIONAL]
        self.required = [
            at.name
            for at in parameters
            if at.default is inspect.Parameter.empty
            and at.kind not in (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
        ]
        self.types = {at.name: hints.get(at.name, Any) for at in parameters}
        #: The type of what the routine returns; of one item if it is a stream.
        self.returns = _item_type(hints.get("return", Any))
        self._more = next((at.name for at in parameters if at.kind is at.VAR_POSITIONAL), None)
        self._named = next((at.name for at in parameters if at.kind is at.VAR_KEYWORD), None)
        self._bare = inspect.Signature(
            [at.replace(annotation=inspect.Parameter.empty) for at in parameters]
        )
        self._struct: type[msgspec.Struct] | None = None

    def bind(self, args: Sequence[Any], kwargs: dict[str, Any]) -> tuple[list[Any], dict[str, Any]]:
        """Orders the arguments of a call, as other languages see them: positions first."""
        if not kwargs and len(self.required) <= len(args) <= len(self.positional):
            return list(args), kwargs
        try:
            bound = self._bare.bind(*args, **kwargs)
        except TypeError as error:
            raise Arguments(f"{self.name}: {error}") from None
        return list(bound.args), dict(bound.kwargs)

    def decode(
        self, payload: bytes, kwargs: dict[str, Any], encoding: Encoding = "json"
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Decodes the arguments of a call. Each must have the type of its parameter."""
        args = self._decode_positional(payload, encoding)
        named: dict[str, Any] = {}
        for name, value in kwargs.items():
            kind = self.types.get(name)
            if kind is None or name in (self._more, self._named):
                if self._named is None:
                    raise Arguments(f"{self.name} has no argument '{name}'")
                kind = self.types[self._named]
            try:
                named[name] = convert(value, kind)
            except (msgspec.ValidationError, TypeError, ValueError) as error:
                raise Arguments(f"argument '{name}' of {self.name}: {error}") from None
        given = set(self.positional[: len(args)])
        missing = [name for name in self.required if name not in given and name not in named]
        if missing:
            raise Arguments(f"{self.name} needs the argument '{missing[0]}'")
        twice = given.intersection(named)
        if twice:
            raise Arguments(f"{self.name} got the argument '{min(twice)}' twice")
        return args, named

    def check(self) -> None:
        """Builds the decoders. A type that cannot travel raises `TypeError`."""
        if self.problem is not None:
            raise TypeError(self.problem)
        self._arguments()
        for name in self.types:
            decoder(self.types[name], "json")
        decoder(self.returns, "json")

    def _decode_positional(self, payload: bytes, encoding: Encoding) -> tuple[Any, ...]:
        if not payload:
            return ()
        try:
            if self._more is None:
                values = msgspec.structs.astuple(decoder(self._arguments(), encoding).decode(payload))
                while values and values[-1] is msgspec.UNSET:
                    values = values[:-1]
                return values
            given = decoder(list[Any], encoding).decode(payload)
            kinds = [self.types[name] for name in self.positional]
            rest = self.types[self._more]
            return tuple(
                convert(value, kinds[at] if at < len(kinds) else rest) for at, value in enumerate(given)
            )
        except msgspec.ValidationError as error:
            raise Arguments(self._explain(str(error))) from None
        except (msgspec.DecodeError, TypeError, ValueError) as error:
            raise Arguments(f"the arguments of {self.name} cannot be decoded: {error}") from None

    def _explain(self, reason: str) -> str:
        """Names the argument of which `msgspec` gives the position."""
        at = re.search(r" - at `\$\[(\d+)\](.*)`$", reason)
        if at is None:
            if "of at most length" in reason:
                return f"{self.name} takes at most {len(self.positional)} arguments by position"
            return f"the arguments of {self.name}: {reason}"
        name = self.positional[int(at.group(1))]
        inside = f" at `{at.group(2)}`" if at.group(2) else ""
        return f"argument '{name}' of {self.name}: {reason[: at.start()]}{inside}"

    def _arguments(self) -> type[msgspec.Struct]:
        if self._struct is None:
            fields = [
                (f"p{at}", self.types[name], msgspec.UNSET) for at, name in enumerate(self.positional)
            ]
            self._struct = msgspec.defstruct(
                "Arguments", fields, array_like=True, forbid_unknown_fields=True
            )
        return self._struct

    def _hints(self, function: Callable[..., Any]) -> dict[str, Any]:
        target = function if inspect.isroutine(function) else type(function).__call__
        try:
            return typing.get_type_hints(target, include_extras=True)
        except Exception as error:
            self.problem = f"the annotations of {self.name} cannot be evaluated: {error}"
            return {}


def _item_type(kind: Any) -> Any:
    origin = typing.get_origin(kind)
    name = getattr(origin, "__name__", "")
    if name in _ITERATORS and getattr(origin, "__module__", "") == "collections.abc":
        return (typing.get_args(kind) or (Any,))[0]
    return kind
