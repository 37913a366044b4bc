# What the shell tests share: a scratch folder, and checks that say what they expected. Sourced, not run.
# shellcheck shell=bash

set -euo pipefail
source_dir=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
export source_dir
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
failures=0

# wrong TEXT: notes a failure; the test goes on.
wrong() {
  echo "FAILED: $*" >&2
  failures=$((failures + 1))
}

# expect CODE PATTERN COMMAND...: it ends with this code, and its output has a line that matches (unless that is empty).
expect() {
  local code=$1 pattern=$2 actual=0
  shift 2
  "$@" >"$scratch/output" 2>&1 || actual=$?
  if [[ $actual -ne $code ]] || { [[ -n $pattern ]] && ! grep -qE -- "$pattern" "$scratch/output"; }; then
    wrong "$*: expected code $code and a line with '$pattern', got code $actual and:"
    tail -n 30 "$scratch/output" >&2
  fi
}

# one_line: the command that expect ran last said one line.
one_line() { [[ $(wc -l <"$scratch/output") -eq 1 ]] || wrong "expected one line, got: $(cat "$scratch/output")"; }

# finish: the test's exit code.
finish() { [[ $failures -eq 0 ]] && echo "all as expected"; }
