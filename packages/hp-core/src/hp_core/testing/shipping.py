# SPDX-License-Identifier: Apache-2.0
"""How a call travels to the workers: by cloudpickle, with the files that they cannot import travelling by value."""

from __future__ import annotations

import contextlib
import importlib.machinery
import io
import marshal
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any

import cloudpickle


class _Pickler(cloudpickle.Pickler):  # type: ignore[misc]
    """cloudpickle, but code keeps its file name, so that a worker's traceback shows the line of the test."""

    def reducer_override(self, obj: Any) -> Any:
        if isinstance(obj, CodeType):
            return marshal.loads, (marshal.dumps(obj),)  # both ends are the same interpreter
        return super().reducer_override(obj)


def ship(function: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> bytes:
    """Pickle a call. Modules that a worker could not import (test modules, scripts) travel by value."""
    with _by_value(function, *args, *kwargs.values()):
        buffer = io.BytesIO()
        _Pickler(buffer).dump((function, args, dict(kwargs)))
        return buffer.getvalue()


@contextlib.contextmanager
def _by_value(*objects: Any) -> Iterator[None]:
    roots: set[Path] = set()
    for obj in objects:
        module = sys.modules.get(getattr(obj, "__module__", None) or type(obj).__module__)
        path = getattr(module, "__file__", None)
        if module is not None and path is not None and not _importable(module):
            roots.add(Path(path).parent)
    # Not the function's module alone: it may use a conftest.py beside it.
    registered = cloudpickle.list_registry_pickle_by_value()
    modules = [
        module
        for name, module in list(sys.modules.items())
        if name != "__main__"  # by value already
        and name not in registered
        and isinstance(module, ModuleType)
        and getattr(module, "__name__", None) == name
        and getattr(module, "__file__", None) is not None
        and Path(str(module.__file__)).parent in roots
        and not _importable(module)
    ]
    for module in modules:
        cloudpickle.register_pickle_by_value(module)
    try:
        yield
    finally:
        for module in modules:
            cloudpickle.unregister_pickle_by_value(module)


def _importable(module: ModuleType) -> bool:
    """Whether ``import`` in a fresh process with our ``sys.path`` gives this very file.

    Namespace packages do not count: with the repository's root on the path, ``packages.x.tests.test_y`` would be one.
    """
    top, _, rest = module.__name__.partition(".")
    if top in sys.builtin_module_names:
        return True
    spec = importlib.machinery.PathFinder.find_spec(top)
    if spec is None or spec.origin is None:
        return False
    path = Path(str(module.__file__)).resolve()
    origin = Path(spec.origin).resolve()
    return origin.parent in path.parents if rest else origin == path
