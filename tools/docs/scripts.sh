#!/usr/bin/env bash
# Fetches what the documentation site runs in a browser, so that it works from files, without a network:
# Mermaid, which draws diagrams, and a stand-in for workers, which search needs there.
# usage: scripts.sh FOLDER
set -euo pipefail
mkdir -p "$1"
cd "$1"
rm -f ./*.tgz
npm pack --silent mermaid@11 iframe-worker@1 >/dev/null
tar -xzOf mermaid-*.tgz package/dist/mermaid.min.js >mermaid.min.js
tar -xzOf iframe-worker-*.tgz package/shim/index.js >iframe-worker.js
rm ./*.tgz
