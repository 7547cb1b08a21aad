#!/usr/bin/env bash
# fuzz.sh SECONDS [TARGET...]: runs each fuzz target that long on what was found before, and stops at
# the first that fails. New inputs go to build/fuzz/corpus, an input that fails to build/fuzz/failed.
set -euo pipefail
seconds=$1
shift
cd "$(dirname "$0")/.."
programs=build/fuzz/tests/fuzz
[ "$#" -gt 0 ] || set -- $(cd "$programs" && ls -d ./*_fuzz | sed 's|./||; s|_fuzz$||')
mkdir -p build/fuzz/failed
for target; do
  found=build/fuzz/corpus/$target
  log=build/fuzz/$target.log
  mkdir -p "$found"
  # Memory that a peer makes a task ask for, and that is refused, is no failure.
  nice "$programs/${target}_fuzz" -max_total_time="$seconds" -malloc_limit_mb=0 \
    -rss_limit_mb=4096 -timeout=25 -print_final_stats=1 \
    -artifact_prefix="build/fuzz/failed/$target-" "$found" "tests/fuzz/corpus/$target" \
    >"$log" 2>&1 || {
    cat "$log"
    echo "fuzzing $target failed; the input: build/fuzz/failed/$target-*" >&2
    exit 1
  }
  echo "fuzzed $target: $(sed -n 's/^Done //p' "$log"), $(sed -n 's/.* cov: \([0-9]*\).*/\1/p' \
    "$log" | tail -1) edges covered"
done
