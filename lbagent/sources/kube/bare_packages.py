"""Packages of which single modules are used, without the code of the packages themselves, which imports all the others."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from functools import partial
from types import ModuleType


def put_in_place(*names: str) -> None:
    """Let modules of these packages be imported without the packages' own code; of nested packages the outer ones come first.

    Of `kubernetes` that code loads the synchronous client with requests and oauthlib: 0.1 s and 9 MiB. What asks a package
    for one of its modules gets it all the same. A package that is loaded already stays as it is.
    """
    for name in names:
        if name not in sys.modules and (spec := importlib.util.find_spec(name)):
            package = sys.modules[name] = importlib.util.module_from_spec(spec)
            package.__dict__["__getattr__"] = partial(_submodule, name)


def _submodule(package: str, name: str) -> ModuleType:
    try:
        return importlib.import_module(f"{package}.{name}")
    except ImportError:
        raise AttributeError(f"module {package!r} has no attribute {name!r}") from None
