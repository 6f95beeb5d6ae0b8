"""Finds the app that a worker names: `shop.tasks:app`, or a module."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Iterable

from .._app import App, default_app
from ..groups import ProcessManager


class CannotLoad(Exception):
    """There is no such app."""


def load_object(name: str) -> object:
    """Imports what a name `MODULE:NAME` means. The current directory is on the path."""
    if os.getcwd() not in sys.path and "" not in sys.path:
        sys.path.insert(0, os.getcwd())
    module_name, _, attribute = name.partition(":")
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name and f"{module_name}.".startswith(f"{error.name}."):
            raise CannotLoad(
                f"there is no module '{module_name}': start the worker in the directory that has it"
            ) from None
        raise
    if not attribute:
        return _only_app(module_name, vars(module).values())
    found: object = module
    for part in attribute.split("."):
        found = getattr(found, part, None)
    return found


def load_app(name: str, process: str | None = None) -> App:
    """The app of a name, or of a process of the manager of that name."""
    found = load_object(name)
    if isinstance(found, ProcessManager):
        if process is None:
            raise CannotLoad(f"'{name}' is a manager: start it with 'raddle up --python {name}'")
        if process not in found.processes:
            raise CannotLoad(f"'{name}' has no process '{process}'")
        return found.app_of(process)
    if not isinstance(found, App):
        raise CannotLoad(f"'{name}' is no raddle.App: name one as MODULE:APP")
    if found is not default_app:
        for routine in default_app.routines.values():
            found.add_routine(routine)
    return found


def _only_app(module: str, values: Iterable[object]) -> App:
    """The app of a module that has one; otherwise that of routines without one."""
    apps = {id(value): value for value in values if isinstance(value, App)}
    if len(apps) > 1:
        raise CannotLoad(f"'{module}' has several apps: name one as {module}:APP")
    return next(iter(apps.values()), default_app)
