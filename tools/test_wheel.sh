#!/usr/bin/env bash
# Installs the newest wheel of dist/ for another Python, in a virtual environment of its own, and
# runs short tests on it. Says so if there is no such Python.
# usage: test_wheel.sh VERSION    (such as 3.13)
set -euo pipefail
version=$1
if ! found=$(tools/find_python.sh "$version" 2>/dev/null); then
  echo "SKIPPED: the wheel was not tested with Python $version, which this host does not have"
  exit 0
fi
wheel=$(find "$PWD/dist" -name "rdma_transport-*.whl" -printf "%T@ %p\n" | sort -n | tail -1)
wheel=${wheel#* }
test -n "$wheel" || { echo "there is no wheel in dist/: make wheel" >&2; exit 1; }
folder=$PWD/build/python-$version
python=$folder/venv/bin/python
tensorflow=$(.venv/bin/python -c 'import importlib.metadata as m; print(m.version("tensorflow"))')
mkdir -p "$folder"
test -x "$python" || "$found" -m venv "$folder/venv"
echo "installing $(basename "$wheel") for Python $version"
"$python" -m pip install -q --disable-pip-version-check \
    "tensorflow==$tensorflow" "$wheel[test]"
"$python" -m pip install -q --disable-pip-version-check --no-deps --force-reinstall "$wheel"
# Next to the sources, the tests would import those instead of the wheel.
rm -rf "$folder/tests_only"
mkdir "$folder/tests_only"
cp -r tests bench tools pyproject.toml "$folder/tests_only"
cd "$folder/tests_only"
"$python" -m pytest -n 2 --dist loadgroup \
    tests/plugin/test_modes.py tests/rdma_transport/test_{fabric,collectives}.py
