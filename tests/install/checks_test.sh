#!/usr/bin/env bash
# The checks in scripts/ find what they look for: each rule is broken in a copy of the sources, and the check names it.
source "$(dirname "${BASH_SOURCE[0]}")/check.sh"

mkdir "$scratch/copy"
(cd "$source_dir" && cp -r .ci ./*.md CMakeLists.txt LICENSE bench cmake docs examples lockstep scripts tests tools "$scratch/copy")
cd "$scratch/copy"

# broken FILE SED-SCRIPT PATTERN CHECK: with this file changed, the check fails with a line that matches.
broken() {
  cp "$1" "$scratch/before"
  sed -i "$2" "$1"
  expect 1 "$3" "scripts/$4"
  cp "$scratch/before" "$1"
}

expect 0 "" scripts/check-layers
broken lockstep/core/log.h '1a #include "lockstep/strategy/strategy.h"' 'log.h.*core may include core only' check-layers
broken lockstep/reduce/loops/tree_sum.inc '1a #include "lockstep/optim/optimizer.h"' 'tree_sum.inc.*reduce may include' check-layers
broken lockstep/comm/failure/phase.cpp '1a const auto now = std::chrono::system_clock::now();' 'phase.cpp:2:.*monotonic ages' check-layers
broken tools/run/worker/lines.cpp '1a const auto now = time(nullptr);' 'lines.cpp:2:.*monotonic ages' check-layers
broken lockstep/core/log.h 1d 'log.h .*does not begin with a comment' check-layers
broken cmake/layers.cmake 1,2d 'layers.cmake .*does not begin with a comment' check-layers
broken lockstep/strategy/metrics.cpp '$a auto* const first = values.data_ptr<float>();' 'metrics.cpp:.*core/tensors/host_bytes.h' check-layers
broken lockstep/strategy/metrics.cpp '$a auto* const first = internal::address_of(values);' 'metrics.cpp:.*core/tensors/host_bytes.h' check-layers
broken scripts/format '2d' 'scripts/format .*does not begin with a comment' check-layers
for i in {1..32}; do echo "// A file." >"lockstep/memory/file_$i.h"; done
expect 1 'lockstep/memory has .* files .*more than 32' scripts/check-layers
rm lockstep/memory/file_*.h

expect 0 "^[0-9]+ files, [0-9]+ lines" scripts/check-walk
broken lockstep/strategy/run.cpp '/^\/\/ Walk:/d' 'run.cpp has no line' check-walk
broken lockstep/strategy/run.cpp 's/-> here -> .*/-> here -> optim\/no_such.cpp/' 'no lockstep/optim/no_such.cpp' check-walk
broken lockstep/optim/loops/update_rules.inc 's/Walk: .* -> here/Walk: core\/log.cpp -> here/' 'comes from core/log.cpp' check-walk
broken lockstep/optim/loops/update_rules.inc 's/-> new weights/-> strategy\/run.cpp/' 'comes to strategy/run.cpp twice' check-walk
broken lockstep/replica/pool/replica_pool.cpp 's/^$/\n\n\n\n\n\n\n\n\n\n\n\n\n\n/' 'more than 1800 lines' check-walk
broken ARCHITECTURE.md 's/(lockstep\/optim\/update\/host_update_kernels.cpp)//' 'does not name optim/update/host_update_kernels.cpp' check-walk

expect 0 '^[0-9]+ classes, 0 names' scripts/check-names
broken lockstep/comm/shared_memory/monitor.h 's/WorkerMonitor/MutexAndCondition/' 'internal::MutexAndCondition .*2 times' check-names
broken lockstep/core/log.cpp '$a namespace lockstep::internal { template <class T> requires(sizeof(T) > 1) struct alignas(8) Turn final : T {\n' 'internal::Turn .*2 times' check-names
broken lockstep/core/log.cpp '$a namespace lockstep::internal::inline comm { class Stranger {}; }' 'log.cpp:.*Stranger does not stand in .*core' check-names
broken lockstep/core/log.cpp '$a namespace lockstep::internal { class Stranger {}; }' 'log.cpp:.*Stranger does not stand in .*core' check-names
broken lockstep/core/log.cpp '$a namespace lockstep { enum class Kind { kA }; class [[nodiscard]] Kind { struct Inner {}; }; }' 'lockstep::Kind .*2 times' check-names
# None of these is a second class of its name.
cp lockstep/core/log.cpp "$scratch/before"
cat >>lockstep/core/log.cpp <<'TEXT'
namespace lockstep::internal::inline core {
namespace { struct Turn {}; }
class MutexAndCondition;  // struct MutexAndCondition {
const char* const text = R"(struct MutexAndCondition {)"; /* struct MutexAndCondition { */
struct Owner { struct Turn {}; };
inline int here() { struct MutexAndCondition {}; return 1'000'000 + '{' + "struct Turn {\""[0]; }
}
TEXT
expect 0 '^[0-9]+ classes, 0 names' scripts/check-names
cp "$scratch/before" lockstep/core/log.cpp

expect 0 '^[0-9]+ variables' scripts/check-switches
broken docs/switches.md '/^| `LOCKSTEP_BUCKETS`/d' 'LOCKSTEP_BUCKETS .*has no row' check-switches
broken docs/switches.md '$a | `LOCKSTEP_NOBODY_READS_IT` | | | |' 'LOCKSTEP_NOBODY_READS_IT .*a row too many' check-switches
broken lockstep/core/log.cpp '$a const char* const other = "LOCKSTEP_NO_ROW";' 'LOCKSTEP_NO_ROW .*has no row' check-switches

expect 0 '^[0-9]+ links, 0 of them wrong' scripts/check-links
broken docs/data.md '$a [a](no-such.md)' 'data.md:[0-9]*: no-such.md .*there is no docs/no-such.md' check-links
broken docs/data.md '$a [`a`](variables.md#no-such)' 'variables.md#no-such .*no such heading' check-links
broken docs/README.md '/(memory.md)/d' 'docs/memory.md .*is not in docs/README.md' check-links

expect 0 '^[0-9]+ blocks: .* 0 not compiled$' scripts/check-snippets
broken docs/data.md '$a ```cpp\nint x;\n```' 'data.md:[0-9]*: is no whole program' check-snippets
broken docs/data.md '$a <!-- snippet: no_such -->\n```cpp\nint x;\n```' 'has no namespace snippets::no_such' check-snippets
broken docs/porting.md 's/^torch::manual_seed(7)/torch::manual_seed(8)/' 'is not in examples/porting/digits.cpp' check-snippets
sed -i '$a ```cpp\n#include <cstdio>\nint main() {}\n```\n<!-- snippet: not compiled, it is the other\x27s -->\n```cpp\n...\n```' docs/data.md
expect 0 ' 3 whole programs .* 1 not compiled$' scripts/check-snippets

sed -i 's/^strict=0.*/strict=1/' scripts/check-errors
echo 'throw UsageError("LS-NOBODY-SAYS-IT", fact, remedy);' >lockstep/core/extra.cpp
printf 'throw UsageError(\n    fmt::format("no code"), remedy);\n' >>lockstep/core/extra.cpp
printf '## LS-NOBODY-THROWS-IT\n\n**Cause.** None.\n' >>docs/errors.md
for finding in 'LS-NOBODY-SAYS-IT .*not described' 'extra.cpp:2:.*without a code' 'LS-NOBODY-THROWS-IT .*nothing throws it' \
  'LS-NOBODY-THROWS-IT .*no \*\*Cure'; do
  expect 1 "$finding" scripts/check-errors
done

finish
