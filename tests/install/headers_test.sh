#!/usr/bin/env bash
# Each header that users include compiles alone and has its names: lockstep/lockstep.h all, lockstep/data.h data and no
# strategy, lockstep/extend.h what authors derive from. None of them brings LibTorch's largest headers or the kit for tests.
# Usage: headers_test.sh BUILD   (a configured build; the compiler and its flags are those of wrong_signatures.cpp)
source "$(dirname "${BASH_SOURCE[0]}")/check.sh"
build=$1

line=$(grep -E '"command": .*wrong_signatures\.cpp",?$' "$build/compile_commands.json" | head -n 1)
command=$(sed -E 's/^ *"command": "(.*)",?$/\1/; s/\\"/"/g; s/ -o [^ ]+//; s/ -c [^ ]+$//' <<<"$line")
[[ -n $command ]] || wrong "compile_commands.json does not know wrong_signatures.cpp"

for names in all data extend; do
  expect 0 '' bash -c "cd $build && $command -fsyntax-only -MD -MF $scratch/$names $source_dir/tests/install/headers/${names}_names.cpp"
  for header in lockstep/testing/ torch/torch.h torch/all.h; do
    ! grep -q "/$header" "$scratch/$names" || wrong "the header of ${names}_names.cpp includes $header"
  done
done
! grep -qE 'lockstep/(strategy|optim|comm|checkpoint)/' "$scratch/data" || wrong "lockstep/data.h includes more than data"

finish
