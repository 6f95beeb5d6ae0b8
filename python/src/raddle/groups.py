"""Process groups: workers with state that take the events of their queues."""

from __future__ import annotations

from abc import ABC


class AbstractWorker(ABC):
    """A worker of a group."""
