"""Projects with and without a worker."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from projects import Project


@pytest.fixture
def project(tmp_path: Path) -> Iterator[Project]:
    """An empty project."""
    made = Project(tmp_path)
    yield made
    made.close()


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Project]:
    """A project with a worker of the app in `shop.py`, for all tests of a module."""
    made = Project(tmp_path_factory.mktemp("shop"))
    made.start_worker("shop:app", "--hosts", "1")
    yield made
    made.close()
