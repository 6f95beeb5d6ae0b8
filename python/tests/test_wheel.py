"""The wheel: installed in new environments of each Python that is here, it runs tasks."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from projects import PACKAGE, Project, binary, interpreter, new_environment

ROOT = PACKAGE.parents[1]
VERSIONS = ["3.10", "3.11", "3.12", "3.13"]
APP = """
import platform
import raddle

app = raddle.App("shop")


@app.routine
def version() -> str:
    return platform.python_version()
"""


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel with the binary of this build."""
    out = tmp_path_factory.mktemp("wheels")
    subprocess.run([sys.executable, "xtask/wheel.py", binary(), str(out)], cwd=ROOT, check=True)
    (made,) = out.glob("*.whl")
    return made


@pytest.fixture
def environment(tmp_path: Path) -> Iterator[Project]:
    """A project whose command line is the one of a virtual environment."""
    made = Project(tmp_path)
    for name in ("PYTHONPATH", "RADDLE_PYTHON"):
        del made.env[name]
    yield made
    made.close()


def test_the_tag_is_of_every_python(wheel: Path) -> None:
    assert wheel.name.startswith("raddle-") and "-py3-none-linux_" in wheel.name


@pytest.mark.parametrize("version", VERSIONS)
def test_runs_tasks_in_a_new_environment(version: str, wheel: Path, environment: Project) -> None:
    python = interpreter(version)
    if python is None:
        pytest.skip(f"there is no Python {version} on this machine")
    directory = environment.directory / "venv"
    new_environment(python, directory, str(wheel))
    environment.program = str(directory / "bin/raddle")
    assert environment.raddle("run", "--", "echo", "hello") == "hello\n"
    (environment.directory / "shop.py").write_text(APP)
    environment.start_worker("shop:app", "--hosts", "1")
    assert environment.value("shop:version").startswith(f"{version}.")

