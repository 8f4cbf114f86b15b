"""Imports single modules of large packages, without the code of the package itself, which imports all its modules."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from types import ModuleType
from typing import Any


def put_in_place(*names: str) -> None:
    """Let modules of these packages be imported without the packages' own code; of nested packages the outer ones come first.

    Of `kubernetes` that code loads the synchronous client with requests and oauthlib: 0.1 s and 9 MiB. An access to a module of
    the package imports it. A package that is already loaded stays unchanged.
    """
    for name in names:
        if name not in sys.modules and (spec := importlib.util.find_spec(name)):
            package = sys.modules[name] = importlib.util.module_from_spec(spec)
            package.__dict__["__getattr__"] = partial(_submodule, name)


@contextmanager
def stand_ins(modules: Mapping[str, Mapping[str, object]]) -> Iterator[None]:
    """Let imports find these attributes in place of modules that are not loaded yet, until the end of the block.

    For modules of which only names are used. An import after the block gets the real module.
    """
    placed = []
    for name, attributes in modules.items():
        if name not in sys.modules:
            module = sys.modules[name] = ModuleType(name)
            module.__dict__.update(attributes)
            placed.append(module)
    try:
        yield
    finally:
        for module in placed:
            if sys.modules.get(module.__name__) is module:
                del sys.modules[module.__name__]


def imported_late(name: str, *called: str) -> Mapping[str, object]:
    """Return the attributes of a stand-in that finds all of them in the module itself, which it imports at the first access.

    For modules that few processes use. `called`: names of functions and classes that are accessed early, and called late.
    """
    return {"__getattr__": partial(_attribute, name), **{each: partial(_call, name, each) for each in called}}


def _call(module: str, name: str, *arguments: Any, **options: Any) -> Any:
    return _attribute(module, name)(*arguments, **options)


def _attribute(module: str, name: str) -> Any:
    if name.startswith("__"):  # the import system reads these
        raise AttributeError(f"module {module!r} has no attribute {name!r}")
    return getattr(importlib.import_module(module), name)


def _submodule(package: str, name: str) -> Any:
    """Return a module of a package; for any other attribute run the package's own code (a plug-in may need it)."""
    try:
        return importlib.import_module(f"{package}.{name}")
    except ImportError:
        if name.startswith("_"):  # the import system reads these
            raise AttributeError(f"module {package!r} has no attribute {name!r}") from None
    module = sys.modules[package]
    module.__dict__.pop("__getattr__", None)
    try:
        module.__spec__.loader.exec_module(module)  # type: ignore[union-attr]
        return getattr(module, name)
    except (ImportError, AttributeError):
        raise AttributeError(f"module {package!r} has no attribute {name!r}") from None
