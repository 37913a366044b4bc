#!/usr/bin/env bash
# A wrong signature is one readable line of the compiler, and the library's kernels are not in users' headers.
# Usage: signatures_test.sh BUILD   (a configured build; the compiler and its flags are those of wrong_signatures.cpp)
source "$(dirname "${BASH_SOURCE[0]}")/check.sh"
build=$1
source=$source_dir/tests/install/wrong_signatures.cpp

line=$(grep -E '"command": .*wrong_signatures\.cpp",?$' "$build/compile_commands.json" | head -n 1)
command=$(sed -E 's/^ *"command": "(.*)",?$/\1/; s/\\"/"/g; s/ -o [^ ]+//; s/ -c / /' <<<"$line")
[[ -n $command ]] || { wrong "compile_commands.json does not know $source" && finish; }

# The kernels' structures are the library's own.
(cd "$build" && bash -c "$command -M -MF $scratch/headers") || wrong "the headers cannot be listed"
for header in optim/loops/update_block.h optim/rules/group_rule.h optim/fused_update.h reduce/loops/tree_sum.h core/loops/simd.h; do
  ! grep -q "lockstep/$header" "$scratch/headers" || wrong "users' programs include lockstep/$header"
done

# Each mistake is one error, and each error is the library's sentence.
! (cd "$build" && bash -c "$command -fsyntax-only -fno-diagnostics-color -fmax-errors=0") 2>"$scratch/errors" || wrong "it compiled"
grep 'error:' "$scratch/errors" >"$scratch/lines" || true
others=$(grep -v 'error: static assertion failed: lockstep: ' "$scratch/lines" || true)
[[ -z $others ]] || wrong "errors that are not the library's: $others"
while IFS= read -r mistake; do
  number=${mistake%%:*}
  sentence=${mistake##*// expect: }
  # The compiler names the user's line in "required from here" before the error.
  awk -v here="wrong_signatures.cpp:$number:" -v sentence="$sentence" '
    index($0, here) { seen = 1; next }
    seen && / error: / { found = index($0, sentence) > 0; exit }
    END { exit !found }' "$scratch/errors" || wrong "line $number: no error that says '$sentence'"
done < <(grep -n '// expect: ' "$source")
expected=$(grep -c '// expect: ' "$source")
[[ $(wc -l <"$scratch/lines") -ge $expected ]] || wrong "too few errors: $(cat "$scratch/lines")"

finish
