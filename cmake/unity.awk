# Puts source files into groups that can be compiled as one file: prints the files of each group on one line.
# Usage: awk -v most=N -f unity.awk FILE...   (at most N files in a group, no spaces in their names)
#
# Files of one group share one unnamed namespace. So what a file defines there, which begins a line in our style, no other
# file of the group may define, or mention without what it is a member of: that would be another thing of this name. The
# same alias may be in several. Where this misses something, the compiler reports it.
function defines(name, alias) {
  if (!((files, name) in alias_of)) names[files] = names[files] " " name
  alias_of[files, name] = alias
}

# Whether what file a calls `name` is something else than what b calls so.
function clash(a, b, name) {
  if (!((b, name) in mentioned)) return 0
  return alias_of[a, name] == "" || !((b, name) in alias_of) || alias_of[a, name] != alias_of[b, name]
}

FNR == 1 { files++; file_of[files] = FILENAME }
{
  line = $0
  sub(/\/\/.*/, "", line)
  while (match(line, /[A-Za-z_][A-Za-z_0-9]*/)) {
    before = RSTART > 1 ? substr(line, RSTART - 1, 1) : ""
    if (before !~ /[.:>]/) mentioned[files, substr(line, RSTART, RLENGTH)] = 1
    line = substr(line, RSTART + RLENGTH)
  }
}
/^using namespace / { alone[files] = 1; next }
/^(namespace|extern|template|TEST|TEST_F|TEST_P|RC_GTEST_PROP|INSTANTIATE_TEST_SUITE_P)[^A-Za-z_]/ { next }
/^using [A-Za-z_0-9]+ =.*;/ { defines($2, $0); next }
/^using [A-Za-z_0-9]+ =/ { defines($2, ""); next }
/^using / { next }
/^(class|struct|union|enum|enum class) / {
  line = $0
  sub(/^(enum class|class|struct|union|enum) (alignas\([^)]*\) |\[\[[a-z_]*\]\] )?/, "", line)
  if (match(line, /^[A-Za-z_0-9]+/)) defines(substr(line, RSTART, RLENGTH), "")
  next
}
/^(\[\[|[A-Za-z_])/ {
  line = $0
  gsub(/(alignas|decltype|__attribute__|requires|noexcept|explicit)\(/, "", line)
  if (!match(line, /(^|[^A-Za-z_0-9])[A-Za-z_][A-Za-z_0-9]*(\(|\[|\{| =|;)/)) next
  before = substr(line, RSTART, 1)
  name = substr(line, RSTART, RLENGTH)
  gsub(/[^A-Za-z_0-9]/, "", name)
  if (before != ":" && before != "~") defines(name, "")  # a member's definition is no new name
}

function fits(file, group,   i, j, count, list, other) {
  if (alone[file] || closed[group]) return size[group] == 0
  for (j = 1; j <= size[group]; j++) {
    other = member[group, j]
    count = split(names[file], list, " ")
    for (i = 1; i <= count; i++) if (clash(file, other, list[i])) return 0
    count = split(names[other], list, " ")
    for (i = 1; i <= count; i++) if (clash(other, file, list[i])) return 0
  }
  return 1
}

END {
  groups = int((files + most - 1) / most)
  for (file = 1; file <= files; file++) {
    best = 0  # the smallest group that it fits in
    for (group = 1; group <= groups; group++) {
      if ((!best || size[group] < size[best]) && size[group] < most && fits(file, group)) best = group
    }
    if (!best) best = ++groups
    member[best, ++size[best]] = file
    closed[best] = alone[file]
  }
  for (group = 1; group <= groups; group++) {
    if (size[group] == 0) continue
    line = ""
    for (j = 1; j <= size[group]; j++) line = line (j > 1 ? " " : "") file_of[member[group, j]]
    print line
  }
}
