"""Handlers in a host: the whole task is their input."""

from __future__ import annotations

import msgspec

from .._handler import Job

_JOB = msgspec.json.Decoder(Job)


def decode_job(payload: bytes) -> Job:
    """The task of an attempt."""
    return _JOB.decode(payload)
