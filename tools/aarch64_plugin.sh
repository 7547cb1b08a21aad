#!/usr/bin/env bash
# Compiles the plugin for aarch64 and links it with TensorFlow's wheel for aarch64. Fails if the
# libraries of that wheel lack a symbol of TensorFlow that the plugin needs. Nothing is run.
set -euo pipefail
python=.venv/bin/python
folder=build/aarch64-tensorflow
version=$("$python" -c 'import importlib.metadata as m; print(m.version("tensorflow"))')
if ! test -d "$folder/tensorflow-$version.dist-info"; then
  echo "downloading TensorFlow $version for aarch64"
  rm -rf "$folder"
  mkdir -p "$folder"
  "$python" -m pip download -q --disable-pip-version-check --no-deps --only-binary=:all: \
    --platform manylinux_2_27_aarch64 --platform manylinux_2_17_aarch64 -d "$folder" \
    "tensorflow==$version"
  "$python" -m zipfile -e "$folder"/*.whl "$folder"
  rm "$folder"/*.whl
fi
export PYTHONPATH=$PWD/$folder
cmake --preset aarch64-plugin >/dev/null
echo "building the plugin for aarch64"
cmake --build --preset aarch64-plugin -j "$(nproc)" >build/aarch64-plugin.log ||
  { cat build/aarch64-plugin.log; exit 1; }

symbols() { # KIND FILE...: the dynamic symbols of TensorFlow, without versions and without our own
  aarch64-linux-gnu-nm -D "--$1-only" --format=posix "${@:2}" | sed -n 's/^\(_Z[^ @]*\).*/\1/p' |
    grep -E '10tensorflow|3tsl' | grep -v 14rdma_transport | sort -u
}
plugin=build/aarch64-plugin/native/plugin/librdma_transport_tensorflow.so
needed=$(symbols undefined "$plugin")
missing=$(comm -23 <(echo "$needed") <(symbols defined "$folder"/tensorflow/libtensorflow_*.so.2))
if test -z "$needed" || test -n "$missing"; then
  echo "TensorFlow $version for aarch64 lacks: ${missing:-(the plugin names no symbol)}" >&2
  exit 1
fi
echo "all $(wc -l <<<"$needed") symbols of TensorFlow that the plugin needs are in the wheel"
