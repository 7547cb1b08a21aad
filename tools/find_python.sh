#!/usr/bin/env bash
# Prints the path of a Python that has venv.
# usage: find_python.sh [VERSION]    (3.11 without it, which builds the package)
set -euo pipefail
version=${1:-3.11}
candidates=("python$version" python3 "/usr/bin/python$version")
candidates+=("$HOME/.pyenv/versions/$version".*/bin/python)
if command -v uv >/dev/null; then
  candidates+=("$(uv python find --no-python-downloads "$version" 2>/dev/null || true)")
fi
for candidate in "${candidates[@]}"; do
  test -n "$candidate" || continue
  if "$candidate" -c "import sys, venv; sys.exit('%d.%d' % sys.version_info[:2] != '$version')" \
    2>/dev/null; then
    command -v "$candidate"
    exit 0
  fi
done
echo "Python $version is needed: apt-get install python$version python$version-venv" >&2
exit 1
