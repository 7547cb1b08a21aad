"""Builds the package by scikit-build-core, after a check of what the host must have.

So `pip install .` on a host without a compiler ends with one sentence, and before pip has
downloaded TensorFlow, whose headers the build needs. The package's extras pin the minor version of
that TensorFlow, because the plugin works with no other.
"""

import importlib.metadata
import os
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from scikit_build_core import build as backend
from scikit_build_core.build import (  # noqa: F401  (pip calls them)
    build_sdist,
    get_requires_for_build_sdist,
    prepare_metadata_for_build_editable,
    prepare_metadata_for_build_wheel,
)

COMPILERS = {"CC": ("C", "cc", "gcc", "clang"), "CXX": ("C++", "c++", "g++", "clang++")}
WHEELS = ("tensorflow", "tensorflow-cpu")  # either will do
HEADERS = ("infiniband/verbs.h", "rdma/fabric.h")
ADVICE = (
    "On Debian: apt-get install g++ libfabric-dev libibverbs-dev. "
    "Or install a wheel that another host has built (make wheel)."
)


def missing() -> str:
    """Return what the host lacks, as the beginning of a sentence; empty if it lacks nothing."""
    found = ""
    for variable, (language, *programs) in COMPILERS.items():
        names = [os.environ[variable].split()[0]] if os.environ.get(variable) else programs
        found = next(filter(None, map(shutil.which, names)), "")
        if not found:
            return f"There is no {language} compiler ({', '.join(names)})"
    for header in HEADERS:
        source = f"#include <{header}>\n"
        words = [found, "-E", "-x", "c++", "-"]
        if subprocess.run(words, input=source, capture_output=True, text=True).returncode:
            return f"The header {header} is missing"
    return ""


def check() -> None:
    """End this process with a sentence if the host lacks something."""
    if what := missing():
        sys.exit(f"{what}. {ADVICE}")


def _tensorflow() -> list[str]:
    project = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text())
    found: list[str] = project["dependency-groups"]["tensorflow"]
    return found


def get_requires_for_build_wheel(settings: dict[str, Any] | None = None) -> list[str]:
    """Return what pip installs before it builds."""
    check()
    return [*backend.get_requires_for_build_wheel(settings), *_tensorflow()]


def get_requires_for_build_editable(settings: dict[str, Any] | None = None) -> list[str]:
    """Return what pip installs before it builds."""
    check()
    return [*backend.get_requires_for_build_editable(settings), *_tensorflow()]


def build_wheel(*arguments: Any, **keywords: Any) -> str:
    """Build a wheel."""
    check()  # without build isolation, nothing was asked before
    return backend.build_wheel(*arguments, **keywords)


def build_editable(*arguments: Any, **keywords: Any) -> str:
    """Build what an editable installation needs."""
    check()
    return backend.build_editable(*arguments, **keywords)


def dynamic_metadata(settings: Mapping[str, Any], project: Mapping[str, Any]) -> dict[str, Any]:
    """Return the extras that install TensorFlow; scikit-build-core calls it.

    A source distribution, which is built without TensorFlow, has those that a wheel can be for.
    """
    (wanted,) = _tensorflow()
    version = wanted.removeprefix("tensorflow")
    for name in WHEELS:
        try:
            version = "==" + ".".join(importlib.metadata.version(name).split(".")[:2]) + ".*"
        except importlib.metadata.PackageNotFoundError:
            continue
        break
    return {"optional-dependencies": {name: [f"{name}{version}"] for name in WHEELS}}


def dynamic_wheel(settings: Mapping[str, Any]) -> dict[str, bool]:
    """Return which metadata of a wheel may differ from that of its source distribution."""
    return {"optional-dependencies": True}
