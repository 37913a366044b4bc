#!/usr/bin/env bash
# The scripts refuse mistyped flags in one line, and never use an incomplete cache.
source "$(dirname "${BASH_SOURCE[0]}")/check.sh"
scripts=$source_dir/scripts

# Stand-ins, first on the path: nothing is installed, fetched or built; $scratch/pip says what pip does.
mkdir "$scratch/bin"
cat >"$scratch/bin/python3" <<'END'
#!/usr/bin/env bash
[[ $* != *--version ]] || exit 0
echo called >>"$scratch/calls"
source "$scratch/pip"
END
cat >"$scratch/bin/unzip" <<'END'
#!/usr/bin/env bash
while [[ $1 != -d ]]; do shift; done
mkdir -p "$2/torch/lib" && touch "$2/torch/lib/libtorch_cpu.so"
END
printf '#!/bin/sh\necho installed\n' >"$scratch/bin/dpkg-query"
printf '#!/bin/sh\necho "cmake was called"\nexit 1\n' >"$scratch/bin/cmake"
chmod +x "$scratch"/bin/*
export scratch PATH=$scratch/bin:$PATH LOCKSTEP_CACHE=$scratch/cache

for script in build demo docs test test-arm test-first-calls fetch-libtorch format fuzz tidy; do
  expect 2 "unknown option --no-such-flag" "$scripts/$script" --no-such-flag
  one_line
  expect 0 "^Usage: scripts/$script" "$scripts/$script" --help
done
for script in build demo test tidy; do
  expect 2 "not '/no/such/folder'" "$scripts/$script" --libtorch /no/such/folder
  one_line
  expect 2 "has no lib/libtorch_cpu.so" "$scripts/$script" --libtorch "$scratch"
  one_line
  expect 2 "needs a value" "$scripts/$script" --libtorch
  one_line
done
expect 2 "not 'nonsense'" "$scripts/test" --preset nonsense
one_line

# What is said at the end of a run in which one test has failed, one was killed and one has passed.
mkdir -p "$scratch/build/Testing/Temporary"
printf '2:optim\n3:data\n' >"$scratch/build/Testing/Temporary/LastTestsFailed.log"
cat >"$scratch/build/Testing/Temporary/LastTest.log" <<'END'
1/3 Testing: core
Output:
----------------------------------------------------------
[ RUN      ] Log.IsQuiet
<end of output>
Test Passed.
2/3 Testing: optim
Output:
----------------------------------------------------------
[ RUN      ] Adam.Steps
[ RUN      ] Sgd.Steps
sgd_test.cpp:7: Failure
Expected equality
<end of output>
Test Failed.
3/3 Testing: data
Output:
----------------------------------------------------------
[ RUN      ] Stream.Ends
<end of output>
Test Failed.
END
cat >"$scratch/failures" <<'END'
failed: optim data
optim:
  [ RUN      ] Sgd.Steps
  sgd_test.cpp:7: Failure
  Expected equality
data:
  [ RUN      ] Stream.Ends
END
# shellcheck disable=SC2016
expect 0 "" bash -c 'source "$1/lib.sh" && first_failures "$2"' "$scripts/test" "$scripts" "$scratch/build"
cmp "$scratch/output" "$scratch/failures" || wrong "other failures than expected: $(cat "$scratch/output")"

# cached: how many folders there are that a run would use.
cached() { find "$LOCKSTEP_CACHE" -mindepth 1 -maxdepth 1 -name 'libtorch-*' -not -name '*.part' | wc -l; }

echo 'echo "Connection refused"; exit 1' >"$scratch/pip"
expect 3 "Connection refused" "$scripts/fetch-libtorch"
echo 'echo "THESE PACKAGES DO NOT MATCH THE HASHES"; exit 1' >"$scratch/pip"
expect 1 "not the pinned ones" "$scripts/fetch-libtorch"
echo "kill -9 \$PPID" >"$scratch/pip"
expect 137 "fetching" "$scripts/fetch-libtorch"
[[ $(cached) -eq 0 ]] || wrong "a failed or killed run left a cache that looks whole"

rm "$scratch/calls"
echo 'sleep 1' >"$scratch/pip"
"$scripts/fetch-libtorch" >"$scratch/first" 2>/dev/null &
"$scripts/fetch-libtorch" >"$scratch/second" 2>/dev/null
wait $!
[[ $(wc -l <"$scratch/calls") -eq 1 ]] || wrong "two runs at once both fetched"
cmp "$scratch/first" "$scratch/second" || wrong "two runs at once gave different folders"
[[ -e $(cat "$scratch/first")/torch/lib/libtorch_cpu.so ]] || wrong "the folder printed has no LibTorch"
expect 0 "^$(cat "$scratch/first")\$" "$scripts/fetch-libtorch"
one_line

finish
