#!/usr/bin/env bash
# Prints the Python 3.11 to use: TensorFlow's wheels are taken for that version.
set -euo pipefail
for candidate in python3.11 python3 /usr/bin/python3.11; do
  if "$candidate" -c 'import sys, venv; sys.exit(sys.version_info[:2] != (3, 11))' 2>/dev/null; then
    command -v "$candidate"
    exit 0
  fi
done
echo "Python 3.11 is needed: apt-get install python3.11 python3-venv" >&2
exit 1
