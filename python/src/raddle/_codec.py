"""Values to bytes and back: JSON for tasks, MessagePack for calls.

Types decide: dataclasses, typed dicts, named tuples, enums, dates, UUIDs, decimals and bytes are
`msgspec`'s; pydantic models and other classes with `model_dump` and `model_validate` are handled
here. No class is imported because data names it.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any, Literal

import msgspec

Encoding = Literal["json", "msgpack"]


class CannotEncode(TypeError):
    """A value that has no form in the encoding."""


def to_plain(value: Any) -> Any:
    """Turns a value that `msgspec` does not know into one that it does."""
    dump = getattr(value, "model_dump", None)
    if dump is not None:
        return dump(mode="json")
    if isinstance(value, BaseException):
        return {"type": type_name(type(value)), "message": str(value)}
    raise NotImplementedError


def from_plain(kind: type, value: Any) -> Any:
    """Builds an instance of a class that `msgspec` does not know."""
    validate = getattr(kind, "model_validate", None)
    if validate is not None:
        return validate(value)
    if isinstance(value, kind):
        return value
    raise TypeError(f"a {type(value).__name__} does not become a {type_name(kind)}")


_JSON = msgspec.json.Encoder(enc_hook=to_plain)
_MSGPACK = msgspec.msgpack.Encoder(enc_hook=to_plain)


def encode(value: Any, encoding: Encoding = "json") -> bytes:
    """Encodes a value. A value that cannot travel raises `CannotEncode`, which names its type."""
    try:
        return _JSON.encode(value) if encoding == "json" else _MSGPACK.encode(value)
    except NotImplementedError:
        raise CannotEncode(f"a value of type {_unknown_type(value)} cannot be sent") from None
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        raise CannotEncode(str(error) or type(error).__name__) from error


def decode(data: bytes, kind: Any = Any, encoding: Encoding = "json") -> Any:
    """Decodes a value of a type. Data that does not fit raises `msgspec.ValidationError`."""
    return decoder(kind, encoding).decode(data)


def convert(value: Any, kind: Any) -> Any:
    """Checks a decoded value against a type, and builds its classes."""
    return msgspec.convert(value, kind, dec_hook=from_plain)


def decoder(kind: Any, encoding: Encoding) -> Any:
    """The decoder of a type. It is made once."""
    try:
        return _decoder(kind, encoding)
    except TypeError as error:
        if "unhashable" not in str(error):
            raise
        return _new_decoder(kind, encoding)


def type_name(kind: type) -> str:
    """`module:Qualname`, or the bare name of a builtin."""
    if kind.__module__ == "builtins":
        return kind.__qualname__
    return f"{kind.__module__}:{kind.__qualname__}"


def _new_decoder(kind: Any, encoding: Encoding) -> Any:
    if encoding == "json":
        return msgspec.json.Decoder(kind, dec_hook=from_plain)
    return msgspec.msgpack.Decoder(kind, dec_hook=from_plain)


_decoder = lru_cache(maxsize=1024)(_new_decoder)


def _unknown_type(value: Any) -> str:
    """The first type inside a value that cannot be encoded."""
    found: list[type] = []

    def note(item: Any) -> Any:
        try:
            return to_plain(item)
        except NotImplementedError:
            found.append(type(item))
            raise

    try:
        msgspec.json.encode(value, enc_hook=note)
    except NotImplementedError:
        pass
    return type_name(found[0]) if found else type_name(type(value))
