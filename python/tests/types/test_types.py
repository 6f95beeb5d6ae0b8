"""Types of the package, as mypy and pyright see them."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
ROOT = HERE.parents[1]


def mypy(*args: str) -> str:
    """The output of mypy."""
    done = subprocess.run(
        [sys.executable, "-m", "mypy", "--strict", "--cache-dir", os.devnull, *args],
        cwd=ROOT,
        text=True,
        capture_output=True,
    )
    return done.stdout + done.stderr


def pyright(*files: Path) -> list[tuple[str, int, str]]:
    """The errors that pyright finds: file, line, message."""
    pytest.importorskip("basedpyright")
    config = HERE / "pyright.json"
    done = subprocess.run(
        [sys.executable, "-m", "basedpyright", "--outputjson", "--project", str(config), *map(str, files)],
        cwd=ROOT,
        text=True,
        capture_output=True,
    )
    found = json.loads(done.stdout)["generalDiagnostics"]
    return [
        (Path(one["file"]).name, one["range"]["start"]["line"] + 1, one["message"])
        for one in found
        if one["severity"] == "error"
    ]


def wrong_lines(path: Path) -> list[int]:
    """The lines that a checker must refuse."""
    return [at for at, line in enumerate(path.read_text().splitlines(), 1) if "# wrong" in line]


def test_the_package_is_typed_throughout() -> None:
    assert "Success" in (said := mypy("src")), said


def test_mypy_accepts_correct_uses_and_refuses_mistakes() -> None:
    said = mypy(str(HERE / "usage.py"), str(HERE / "mistakes.py"))
    errors = [tuple(found) for found in re.findall(r"(\w+\.py):(\d+): error", said)]
    wanted = [("mistakes.py", str(line)) for line in wrong_lines(HERE / "mistakes.py")]
    assert sorted(set(errors)) == sorted(wanted), said


def test_pyright_accepts_correct_uses_and_refuses_mistakes() -> None:
    errors = pyright(HERE / "usage.py", HERE / "mistakes.py")
    found = sorted({(file, line) for file, line, _ in errors})
    assert found == [("mistakes.py", line) for line in wrong_lines(HERE / "mistakes.py")], errors
