"""Calls functions as soon as modules have been imported, and refuses to import some."""

import sys
from collections.abc import Callable, Sequence
from importlib.abc import Loader
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from types import ModuleType
from typing import Any, cast

Hook = Callable[[Any], None] | str
"""What to call with the module, or why it must not be imported."""


def after_import(hooks: dict[str, Hook]) -> None:
    """Call the function of each name with the module, before the code that imports it goes on.

    Where there is a reason instead, ``ImportError`` gives it.
    """
    sys.meta_path.insert(0, _Finder(hooks))


class _Finder:
    """Lets the other finders look, and puts a loader before theirs."""

    def __init__(self, hooks: dict[str, Hook]) -> None:
        self._hooks = dict(hooks)

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        hook = self._hooks.pop(name, None)
        if hook is None:
            return None
        try:
            spec = find_spec(name)  # asks this finder again, which does not know the name now
        finally:
            self._hooks[name] = hook  # not every module that is found is imported
        if spec is None or spec.loader is None:
            return None
        spec.loader = cast(Loader, _Loader(spec.loader, self._hooks))  # by its methods
        return spec


class _Loader:
    """Loads a module as its own loader does, which the module then knows as its loader."""

    def __init__(self, loader: Any, hooks: dict[str, Hook]) -> None:
        self._loader, self._hooks = loader, hooks

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        made: ModuleType | None = self._loader.create_module(spec)
        return made

    def exec_module(self, module: ModuleType) -> None:
        hook = self._hooks.get(module.__name__)
        if isinstance(hook, str):
            raise ImportError(hook, name=module.__name__)
        module.__loader__ = self._loader
        if module.__spec__ is not None:
            module.__spec__.loader = self._loader
        self._loader.exec_module(module)
        if hook is not None:
            del self._hooks[module.__name__]
            hook(module)
