#!/usr/bin/env bash
# Tests the newest wheel of dist/. Without TensorFlow: with the lowest and with the newest versions of
# what it requires, each command in short. For other Pythons, in a virtual environment each: short
# tests, with either wheel of TensorFlow in turn. Says so if there is no such Python.
# usage: test_wheel.sh [VERSION]...    (such as 3.13)
set -euo pipefail
wheel=$(find "$PWD/dist" -name "rdma_transport-*.whl" -printf "%T@ %p\n" | sort -n | tail -1)
wheel=${wheel#* }
test -n "$wheel" || { echo "there is no wheel in dist/: make wheel" >&2; exit 1; }
export PIP_DISABLE_PIP_VERSION_CHECK=1

folder=$PWD/build/without-tensorflow
rm -rf "$folder"
"$(tools/find_python.sh)" -m venv "$folder"
.venv/bin/python tools/requirements.py lowest >"$folder/lowest.txt"
cp tools/try_wheel.py "$folder"
echo "trying $(basename "$wheel") with the lowest versions of what it requires"
"$folder/bin/pip" install -q "$wheel" -r "$folder/lowest.txt"
"$folder/bin/python" "$folder/try_wheel.py"
echo "and with the newest"
"$folder/bin/pip" install -q --upgrade --upgrade-strategy eager "$wheel"
"$folder/bin/python" "$folder/try_wheel.py"

extra=tensorflow-cpu
for version in "$@"; do
  if ! found=$(tools/find_python.sh "$version" 2>/dev/null); then
    echo "SKIPPED: the wheel was not tested with Python $version, which this host does not have"
    continue
  fi
  folder=$PWD/build/python-$version
  python=$folder/venv/bin/python
  mkdir -p "$folder"
  test -x "$python" || "$found" -m venv "$folder/venv"
  echo "installing $(basename "$wheel") and $extra for Python $version"
  .venv/bin/python tools/requirements.py test >"$folder/requirements.txt"
  "$python" -m pip install -q "$wheel[$extra]" -r "$folder/requirements.txt"
  "$python" -m pip install -q --no-deps --force-reinstall "$wheel"
  # Next to the sources, the tests would import those instead of the wheel.
  rm -rf "$folder/tests_only"
  mkdir "$folder/tests_only"
  cp -r tests bench tools pyproject.toml "$folder/tests_only"
  (cd "$folder/tests_only" && "$python" -m pytest -n 2 --dist loadgroup -m "not exhaustive" \
    tests/plugin/test_modes.py tests/rdma_transport/test_{fabric,collectives}.py)
  extra=tensorflow
done
