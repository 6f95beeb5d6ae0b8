"""The pages about Python: their programs are written to files, and their commands are run."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from projects import DEADLINE, PACKAGE, Project, binary, project

__all__ = ["project"]
DOCS = PACKAGE.parents[1] / "docs"
BLOCK = re.compile(r"(?:<!-- (?P<comment>.*?) -->\n)?```(?P<kind>\w+)\n(?P<text>.*?)```", re.DOTALL)


def normal(text: str) -> str:
    """Text without what differs from run to run."""
    return re.sub(r"\d{19}", "TID", text).strip()


def commands(text: str) -> list[tuple[str, str]]:
    """The commands of a console block, with what they print."""
    found: list[tuple[str, str]] = []
    for line in text.splitlines():
        if line.startswith("$ "):
            found.append((line[2:], ""))
        else:
            command, printed = found[-1]
            found[-1] = (command, printed + line + "\n")
    return found


def test_the_first_function_runs_as_written(project: Project, tmp_path: Path) -> None:
    programs = tmp_path / "bin"
    programs.mkdir()
    for name, target in [("raddle", binary()), ("python", sys.executable)]:
        (programs / name).write_text(f'#!/bin/sh\nexec "{target}" "$@"\n')
        (programs / name).chmod(0o755)
    env = {**project.env, "PATH": f"{programs}{os.pathsep}{os.environ['PATH']}"}
    env.update(PYTHONPATH=str(PACKAGE), RADDLE_BINARY=binary())
    for block in BLOCK.finditer((DOCS / "start/python.md").read_text()):
        comment = block["comment"] or ""
        if comment.startswith("file: "):
            (project.directory / comment[6:]).write_text(block["text"])
        if block["kind"] != "console":
            continue
        for command, printed in commands(block["text"]):
            done = subprocess.run(
                ["sh", "-c", command],
                cwd=project.directory,
                env=env,
                text=True,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                timeout=DEADLINE,
            )
            assert normal(done.stdout) == normal(printed), command


@pytest.mark.parametrize("page", ["how-to/python.md"])
def test_programs_of_a_page_can_be_imported(page: str) -> None:
    for block in BLOCK.finditer((DOCS / page).read_text()):
        if block["kind"] == "python":
            exec(compile(block["text"], page, "exec"), {"__name__": "shop"})
