#!/usr/bin/env bash
# The documentation is a site without dead links and without anything from elsewhere, and mistakes in it are named.
source "$(dirname "${BASH_SOURCE[0]}")/check.sh"

for package in doxygen furo python3-breathe python3-myst-parser python3-sphinx; do
  if ! dpkg-query -W -f '${db:Status-Status}\n' "$package" 2>/dev/null | grep -qx installed; then
    echo "SKIPPED: $package is not installed; scripts/docs installs what the site needs"
    exit 77
  fi
done

mkdir "$scratch/copy"
(cd "$source_dir" && cp -r ./*.md CMakeLists.txt LICENSE bench cmake docs examples lockstep scripts tests tools "$scratch/copy")
cd "$scratch/copy"

expect 0 '^[0-9]+ pages, [0-9]+ links, [1-9][0-9]* codes of errors, 0 findings' scripts/docs
for page in index lockstep errors data api/the-loop examples/01_train source/lockstep/comm; do
  [[ -s build/docs/$page.html ]] || wrong "the site has no page $page"
done
for name in MirroredStrategy run LS-AXIS; do
  grep -qi "\"$name\"\|$name:" build/docs/searchindex.js || wrong "the search does not find $name"
done
grep -q 'href="errors.html#ls-axis"' build/docs/genindex.html || wrong "the index has no codes of errors"
while read -r name; do
  grep -q "$name (C++" build/docs/genindex.html || wrong "the reference does not have $name"
done < <(sed -nE 's/^using (lockstep::[A-Za-z_:]+);.*/\1/p' tests/install/headers/*.cpp | sort -u)
! grep -rqE 'lockstep(::|_1_1)internal' build/docs/api || wrong "the reference has internals"

# Each of these mistakes is named, at its place; in a site of few headers and sources, which is made sooner.
echo '# Architecture' >ARCHITECTURE.md
header() { printf '// A header.\n#pragma once\n\n%b' "${@:2}" >"lockstep/$1.h"; }
header lockstep '// The loop.\n#include "lockstep/core/ids.h"\n// Data: it.\n#include "lockstep/data.h"\n' \
  '// Extension: it.\n#include "lockstep/extend.h"\n'
header data '// It: a part.\n#include "lockstep/data/cursor.h"\n'
header extend '// It: a part.\n#include "lockstep/reduce/reduction.h"\n'
for kit in local_replicas local_workers conformance world_conformance; do header testing/$kit ''; done
echo '[one](no-such.md) [two](variables.md#no-such-heading) LS-NO-SUCH-CODE' >>docs/data.md
echo '# A page in no table of contents' >docs/lonely.md
header data/cursor 'namespace lockstep {\n/// \\param none There is none.\nvoid f(int one);\n}  // namespace lockstep\n'
expect 1 "cursor.h:[0-9]+: error: argument 'none'" scripts/docs
header data/cursor 'namespace lockstep {\n/// Takes it.\nvoid f(NoSuchOptions one);\n}  // namespace lockstep\n'
expect 1 'data.md:.*no such file or heading: no-such.md' scripts/docs
for mistake in 'data.md:.*no such file or heading: variables.md#no-such-heading' \
  'data.md:.*no such code or page: LS-NO-SUCH-CODE' 'lonely.md: WARNING: document is' 'not found: NoSuchOptions'; do
  grep -qE -- "$mistake" "$scratch/output" || wrong "no line with '$mistake': $(cat "$scratch/output")"
done

finish
