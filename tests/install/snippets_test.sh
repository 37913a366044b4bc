#!/usr/bin/env bash
# Each block of C++ in the documentation compiles: whole programs by themselves, all others as functions of one file, so
# that LibTorch's headers are read once.
# Usage: snippets_test.sh BUILD   (a configured build; the compiler and its flags are those of snippets.cpp)
source "$(dirname "${BASH_SOURCE[0]}")/check.sh"
build=$1

line=$(grep -E '"command": .*snippets\.cpp",?$' "$build/compile_commands.json" | head -n 1)
command=$(sed -E 's/^ *"command": "(.*)",?$/\1/; s/\\"/"/g; s/ -o [^ ]+//; s/ -c [^ ]+$//' <<<"$line")
[[ -n $command ]] || wrong "compile_commands.json does not know snippets.cpp"

expect 0 '^[0-9]+ blocks: [1-9][0-9]* with names' "$source_dir/scripts/check-snippets" --into "$scratch"
for file in "$scratch"/*.cpp; do
  # A block shows how something is made, and leaves what comes of it unused.
  expect 0 '' bash -c "cd $build && $command -Wno-unused -I$source_dir -fsyntax-only -fno-diagnostics-color $file"
done

finish
