"""Writes the wheel of the Python package: its modules, and the binary `raddle` as a script."""

import argparse
import base64
import hashlib
import platform
import re
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

PACKAGE = Path("python")
#: A static binary needs no C library: it runs on each distribution that these tags name.
STATIC_TAGS = "manylinux_2_17_{machine}.manylinux2014_{machine}.musllinux_1_1_{machine}"
TIME = (2026, 1, 1, 0, 0, 0)


def project_field(text: str, name: str) -> str:
    """A text in pyproject.toml."""
    found = re.search(rf'^{name} = "(.*)"$', text, re.MULTILINE)
    if found is None:
        sys.exit(f"{PACKAGE}/pyproject.toml has no {name}")
    return found.group(1)


def list_field(text: str, name: str) -> list:
    """A list of texts in pyproject.toml."""
    found = re.search(rf"^{name} = \[(.*?)\]$", text, re.MULTILINE | re.DOTALL)
    return re.findall(r'"([^"]*)"', found.group(1)) if found else []


def metadata(text: str) -> str:
    """The file METADATA."""
    lines = [
        "Metadata-Version: 2.1",
        f"Name: {project_field(text, 'name')}",
        f"Version: {project_field(text, 'version')}",
        f"Summary: {project_field(text, 'description')}",
        "License: MIT OR Apache-2.0",
        f"Requires-Python: {project_field(text, 'requires-python')}",
        *(f"Requires-Dist: {one}" for one in list_field(text, "dependencies")),
        *(f"Classifier: {one}" for one in list_field(text, "classifiers")),
        "Description-Content-Type: text/markdown",
    ]
    return "\n".join(lines) + "\n\n" + (PACKAGE / "README.md").read_text()


def entry_points(text: str) -> str:
    """The file entry_points.txt."""
    groups = re.findall(r"^\[project\.entry-points\.(\S+)\]\n((?:\S.*\n)+)", text, re.MULTILINE)
    parts = []
    for group, entries in groups:
        parts.append(f"[{group}]")
        parts += [entry.replace('"', "") for entry in entries.strip().splitlines()]
    return "\n".join(parts) + "\n"


def stripped(binary: Path) -> bytes:
    """The binary without symbols, if `strip` is there."""
    with tempfile.NamedTemporaryFile() as copy:
        try:
            subprocess.run(["strip", "-o", copy.name, str(binary)], check=True)
            return Path(copy.name).read_bytes()
        except (OSError, subprocess.CalledProcessError):
            return binary.read_bytes()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("binary", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--static", action="store_true")
    args = parser.parse_args()
    text = (PACKAGE / "pyproject.toml").read_text()
    name, version = project_field(text, "name"), project_field(text, "version")
    machine = platform.machine()
    tags = STATIC_TAGS.format(machine=machine) if args.static else f"linux_{machine}"
    args.out.mkdir(parents=True, exist_ok=True)
    wheel = args.out / f"{name}-{version}-py3-none-{tags}.whl"
    info = f"{name}-{version}.dist-info"
    source = PACKAGE / "src"
    files = {
        str(path.relative_to(source)): (path.read_bytes(), 0o644)
        for path in sorted((source / name).rglob("*"))
        if path.is_file() and path.suffix in (".py", ".typed", ".pyi")
    }
    files[f"{name}-{version}.data/scripts/raddle"] = (stripped(args.binary), 0o755)
    files[f"{info}/METADATA"] = (metadata(text).encode(), 0o644)
    files[f"{info}/entry_points.txt"] = (entry_points(text).encode(), 0o644)
    tag_lines = "".join(f"Tag: py3-none-{tag}\n" for tag in tags.split("."))
    wheel_text = f"Wheel-Version: 1.0\nGenerator: xtask\nRoot-Is-Purelib: false\n{tag_lines}"
    files[f"{info}/WHEEL"] = (wheel_text.encode(), 0o644)
    record = []
    partial = wheel.with_suffix(".partial")
    with zipfile.ZipFile(partial, "w", zipfile.ZIP_DEFLATED, compresslevel=6) as archive:

        def add(path: str, data: bytes, mode: int) -> None:
            entry = zipfile.ZipInfo(path, TIME)
            entry.external_attr = (0o100000 | mode) << 16
            entry.compress_type = zipfile.ZIP_DEFLATED
            archive.writestr(entry, data)

        for path, (data, mode) in files.items():
            add(path, data, mode)
            digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
            record.append(f"{path},sha256={digest},{len(data)}")
        record.append(f"{info}/RECORD,,")
        add(f"{info}/RECORD", ("\n".join(record) + "\n").encode(), 0o644)
    partial.replace(wheel)
    print(f"{wheel} ({wheel.stat().st_size / 1e6:.1f} MB)")


main()
