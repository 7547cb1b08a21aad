#!/usr/bin/env bash
# Builds the package for another version of TensorFlow, in a virtual environment of its own, and runs
# short tests on it.
# usage: test_tensorflow.sh VERSION    (such as 2.18)
set -euo pipefail
version=$1
folder=build/tensorflow-$version
python=$folder/venv/bin/python
mkdir -p "$folder"
test -x "$python" || "$(tools/find_python.sh)" -m venv "$folder/venv"
.venv/bin/python tools/requirements.py package examples test > "$folder/requirements.txt"
export PATH=$PWD/$folder/venv/bin:$PATH PIP_DISABLE_PIP_VERSION_CHECK=1
echo "installing TensorFlow $version"
"$python" -m pip install -q -r "$folder/requirements.txt" "tensorflow==$version.*" "tf-keras==$version.*"
echo "building rdma_transport for TensorFlow $version"
"$python" -m pip install -q --no-build-isolation --no-deps --force-reinstall \
    --config-settings=build-dir="$folder/build" --editable .
# Over shared memory, but for the data service, which has tests in `make test-exhaustive` only.
"$python" -m pytest -n 2 --dist loadgroup -m "not exhaustive" \
    tests/plugin/test_{equality,frontends,collectives,modes,static,versions}.py
"$python" -m pytest -n 1 tests/plugin/test_data_service.py
