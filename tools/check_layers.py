"""Check that each layer includes, or imports, only itself and the layers below it.

Neither Python modules, not even inside functions, nor native units may know each other in a
circle. A native unit is a header and the source of the same name.

usage: check_layers.py    (from the top of the repository; exit code 1 lists what it found)
"""

import ast
import re
import sys
from collections.abc import Iterator
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

# From the bottom up. The longest prefix that fits a file decides its layer. Layers in one row do
# not know each other. Each folder is in one of them by its own name.
NATIVE = (
    ("shim/",),
    ("base/",),
    ("fabric/fabric.h",),
    ("fabric/greeting.h",),
    ("fabric/host/",),
    ("fabric/avoided.",),
    ("fabric/combined.",),
    ("fabric/shm/", "fabric/verbs/", "fabric/libfabric/", "fabric/striped/"),
    ("fabric/",),
    ("memory/",),
    ("collectives/",),
    ("embeddings/",),
    ("protocol/",),
    ("rpc/",),
    ("analyzer/",),
    ("plugin/", "ops/"),
    ("data_service/",),
    ("bindings/",),
)
# What users import comes first; what only commands need is above the analyzer.
PYTHON = (
    ("rdma_transport/",),
    ("graph_analyzer/",),
    ("rdma_transport/config.py", "rdma_transport/doctor/", "rdma_transport/observe/"),
    ("rdma_transport/info.py", "rdma_transport/qualify/"),
    ("bench/",),
    ("examples/",),
    ("bench/paper/",),
    ("rdma_transport/cli.py",),
    ("rdma_transport/__main__.py",),
)
SOURCES = (".c", ".cc", ".h", ".pyx", ".pxd")
INSTALLED = {"rdma_transport.bench": "bench"}  # as pyproject.toml maps the folder
_INCLUDE = re.compile(r'^#include "([a-z_0-9/.]+)"', re.MULTILINE)


def layer(layers: tuple[tuple[str, ...], ...], name: str) -> tuple[int, str] | None:
    """The row of a file or module, and the prefix that says so; None: it is in no layer."""
    fits = [
        (len(prefix), row, prefix)
        for row, group in enumerate(layers)
        for prefix in group
        if name.startswith(prefix)
    ]
    return max(fits)[1:] if fits else None


def native() -> Iterator[tuple[str, str]]:
    """File and included file, of those that exist under native/."""
    for path in sorted(Path("native").glob("**/*.*")):
        if path.suffix in SOURCES:
            for found in _INCLUDE.finditer(path.read_text()):
                if (Path("native") / found[1]).exists():
                    yield str(path.relative_to("native")), found[1]


def units(edges: list[tuple[str, str]]) -> Iterator[tuple[str, str]]:
    """The edges between a header with its source and another one."""
    for source, target in edges:
        names = (str(Path(source).with_suffix("")), str(Path(target).with_suffix("")))
        if names[0] != names[1]:
            yield names


def python() -> Iterator[tuple[str, str]]:
    """File and imported file, among the packages of this repository."""
    for package in ("rdma_transport", "graph_analyzer", "bench", "examples"):
        for path in sorted(Path(package).glob("**/*.py")):
            for node in ast.walk(ast.parse(path.read_text())):
                for name in imported(node, path):
                    target = file_of(name)
                    if target:
                        yield str(path), target


def imported(node: ast.AST, path: Path) -> list[str]:
    """The full names that a statement of a file imports."""
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    if not isinstance(node, ast.ImportFrom):
        return []
    package = path.parts[: -node.level] if node.level else ()
    module = ".".join([*package, *([node.module] if node.module else [])])
    for name, folder in INSTALLED.items():
        module = re.sub(rf"^{re.escape(name)}\b", folder, module)
    return [f"{module}.{alias.name}" for alias in node.names]


def file_of(name: str) -> str:
    """The file of a module, or of the module that has the name; empty: it is no Python of ours."""
    parts = name.split(".")
    if Path("native/bindings", f"{parts[-1]}.pyx").exists():
        return ""
    for length in (len(parts), len(parts) - 1):
        stem = Path(*parts[:length]) if length else None
        if stem and stem.with_suffix(".py").exists():
            return str(stem.with_suffix(".py"))
        if stem and (stem / "__init__.py").exists():
            return str(stem / "__init__.py")
    return ""


def unknown() -> Iterator[str]:
    """Folders of sources, and Python packages, that no layer names."""
    named = {prefix for group in NATIVE for prefix in group}
    folders = {path.parent for path in Path("native").glob("**/*.*") if path.suffix in SOURCES}
    for folder in sorted(folders):
        if f"{folder.relative_to('native')}/" not in named:
            yield f"{folder} is in no layer: name it in {__file__}"
    for package in sorted(path.parent.name for path in Path().glob("*/__init__.py")):
        if package != "tests" and layer(PYTHON, f"{package}/") is None:
            yield f"{package} is in no layer: name it in {__file__}"


def upward(layers: tuple[tuple[str, ...], ...], edges: list[tuple[str, str]]) -> Iterator[str]:
    """Edges to a higher layer, or to another one in the same row."""
    for source, target in edges:
        here, there = layer(layers, source), layer(layers, target)
        if here is None or there is None or here[1] == there[1]:
            continue
        if there[0] >= here[0]:
            yield f"{source} knows {target}, of a layer that is not below it"


def circle(edges: list[tuple[str, str]]) -> Iterator[str]:
    """A circle of files or units that know each other."""
    known = TopologicalSorter[str]()
    for source, target in edges:
        known.add(source, target)
    try:
        known.prepare()
    except CycleError as error:
        yield f"a circle: {' -> '.join(reversed(error.args[1]))}"


def main() -> int:
    """Print what each layer knows that it should not."""
    includes = list(native())
    imports = list(python())
    found = [
        *unknown(),
        *upward(NATIVE, includes),
        *circle(list(units(includes))),
        *upward(PYTHON, imports),
        *circle(imports),
    ]
    print("\n".join(found), end="\n" if found else "")
    return int(bool(found))


if __name__ == "__main__":
    sys.exit(main())
