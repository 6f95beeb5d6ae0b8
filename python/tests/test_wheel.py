"""The wheel: installed in new environments of each Python that is here, it runs tasks."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from projects import PACKAGE, Project, binary

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


def interpreter(version: str) -> str | None:
    """An interpreter of a version: on the path, or of pyenv."""
    if version == f"{sys.version_info.major}.{sys.version_info.minor}":
        return sys.executable
    roots = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    found = sorted(roots.glob(f"{version}.*/bin/python"))
    return str(found[-1]) if found else shutil.which(f"python{version}")


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
    # It makes environments for other versions, and needs no Debian package.
    create = [sys.executable, "-m", "virtualenv", "--quiet", "--no-download", "--python", python]
    subprocess.run([*create, directory], check=True)
    pip = [directory / "bin/python", "-m", "pip", "--disable-pip-version-check", "install", "-q"]
    subprocess.run([*pip, wheel], check=True)
    environment.program = str(directory / "bin/raddle")
    assert environment.raddle("run", "--", "echo", "hello") == "hello\n"
    (environment.directory / "shop.py").write_text(APP)
    environment.start_worker("shop:app", "--hosts", "1")
    assert environment.value("shop:version").startswith(f"{version}.")

