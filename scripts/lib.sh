# What the scripts share: messages, packages, the choice of a LibTorch, configuring and building. Sourced, not run.
# shellcheck shell=bash disable=SC2034

set -euo pipefail
shopt -s inherit_errexit
scripts=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
root=$(dirname "$scripts")
script=scripts/$(basename "$0")

say() { printf '%s: %s\n' "$script" "$*" >&2; }
fail() { say "$*" && exit 1; }
misused() { say "$*; $script --help lists what there is" && exit 2; }

# value FLAG VALUE: a flag's value, for `x=$(value "$@")`, alone on its line: with && after it, a refusal would go unseen.
value() {
  [[ $# -ge 2 && -n $2 ]] || misused "$1 needs a value"
  printf '%s\n' "$2"
}

# need_packages NAME...: installs those of the distribution's packages that are missing.
need_packages() {
  local name missing=()
  if ! command -v dpkg-query >/dev/null; then
    say "this is not Debian or Ubuntu; taking it that these packages, or what they are called here, are there: $*"
    return 0
  fi
  for name in "$@"; do
    dpkg-query -W -f '${db:Status-Status}\n' "$name" 2>/dev/null | grep -qx installed || missing+=("$name")
  done
  [[ ${#missing[@]} -gt 0 ]] || return 0
  say "installing ${missing[*]}"
  local as_root=(env DEBIAN_FRONTEND=noninteractive)
  if [[ $EUID -ne 0 ]]; then
    command -v sudo >/dev/null || fail "these packages are missing, and there is no sudo: have them installed: ${missing[*]}"
    as_root=(sudo "${as_root[@]}")
  fi
  local apt=("${as_root[@]}" apt-get -qq -o DPkg::Lock::Timeout=600)
  { "${apt[@]}" update && "${apt[@]}" install -y --no-install-recommends "${missing[@]}" >/dev/null; } >&2 ||
    fail "apt could not install ${missing[*]}; see its message above"
}

libtorch_help="  --libtorch WHICH  wheel (default: 2.15.0 from the Python index, no Python is used; where the index cannot be
                    reached, the distribution's package), debian (the distribution's package), python (the
                    one that python3 imports), or a folder: an unpacked zip or a build of your own"

# libtorch_value FLAG VALUE: the value of --libtorch, looked at before anything is done.
libtorch_value() {
  local which lib
  which=$(value "$@")
  if [[ $which != wheel && $which != debian && $which != python ]]; then
    [[ -d $which ]] || misused "--libtorch takes wheel, debian, python or a folder, not '$which'"
    which=$(cd "$which" && pwd)
    lib=lib/libtorch_cpu.so
    [[ -e $which/$lib || -e $which/torch/$lib || -e $which/libtorch/$lib ]] || misused "--libtorch: $which has no $lib"
  fi
  printf '%s\n' "$which"
}

# choose_libtorch WHICH: sets libtorch_root, and libtorch_kind for the name of a build folder.
choose_libtorch() {
  local code=0
  libtorch_kind=$1
  case $1 in
    '' | wheel)
      libtorch_kind=wheel
      libtorch_root=$("$scripts/fetch-libtorch") || code=$?
      if [[ $code -eq 3 && -z $1 ]]; then
        say "LibTorch 2.15.0 cannot be had from the Python index (see above): using the distribution's package instead"
        choose_libtorch debian
      elif [[ $code -ne 0 ]]; then
        fail "no LibTorch; --libtorch debian takes the distribution's package"
      fi
      ;;
    debian)
      # Without a word it would come with the reference BLAS, which is slower by ten times.
      need_packages libtorch-dev libopenblas0-pthread
      libtorch_root=/usr
      ;;
    python)
      libtorch_root=$(python3 -c 'import importlib.util as u; s = u.find_spec("torch"); print(s.submodule_search_locations[0] if s else "")') ||
        fail "--libtorch python needs a python3 on the path"
      [[ -n $libtorch_root ]] || fail "$(command -v python3) has no torch; activate the environment that has it"
      ;;
    *)
      libtorch_kind=folder
      libtorch_root=$1
      ;;
  esac
}

# configure_with PRESET WHICH NAME [CMAKE OPTION...]: everything from a bare machine to a configured $build_dir.
configure_with() {
  local preset=$1 which=$2 name=$3
  shift 3
  local packages=(ca-certificates cmake g++ ninja-build
    libasio-dev libcli11-dev libfmt-dev libjpeg-dev libpng-dev libssl-dev libxxhash-dev nlohmann-json3-dev zlib1g-dev)
  # The last three are for the engines ucx and mpi: without them these are not built, and their tests are left out.
  [[ $preset == release ]] ||
    packages+=(libgtest-dev librapidcheck-dev pkg-config unzip openmpi-bin libopenmpi-dev libucx-dev)
  need_packages "${packages[@]}"
  choose_libtorch "$which"
  build_dir=$root/build/$name-$libtorch_kind
  cd "$root"
  cmake --preset "$preset" -B "$build_dir" -DLibTorch_ROOT="$libtorch_root" "$@"
}

# build_with PRESET WHICH [TARGET...]: everything from a bare machine to a finished build in $build_dir, of all or of
# these targets.
build_with() {
  configure_with "$1" "$2" "$1"
  cmake --build "$build_dir" --parallel "$(jobs)" ${3:+--target "${@:3}"}
}

# jobs: one for each core, as far as memory goes: a file that includes all of LibTorch takes 1.5 GB to compile.
jobs() {
  local cores memory
  cores=$(nproc)
  memory=$(awk '/^MemAvailable/ { print int($2 / 1500000) }' /proc/meminfo)
  echo $((memory < 1 ? 1 : memory < cores ? memory : cores))
}

# first_failures FOLDER: the names of the tests that have failed in the last run of ctest there, and, in at most 40 lines,
# where each of them failed; its last lines where it does not say that.
first_failures() {
  echo "failed: $(cut -d: -f2- "$1/Testing/Temporary/LastTestsFailed.log" | paste -sd ' ')"
  awk '
    function show(line) { if (shown++ < 40) print line }
    /^[0-9]+\/[0-9]+ Testing: / { name = $3; begin = found = left = 0; run = "" }
    /^Output:$/ { begin = NR + 2 }
    /^<end of output>$/ { end = NR; left = 0 }
    /^\[ RUN  / { run = $0 }
    /: Failure$|^--- worker |Sanitizer: |^terminate called/ {
      if (run != "") say[found++] = run
      run = ""
      left = 8
    }
    left-- > 0 { say[found++] = $0 }
    { last[NR % 8] = $0 }
    /^<end of output>$/ && found == 0 { for (i = end - 7; i < end; i++) if (i >= begin) say[found++] = last[i % 8] }
    /^Test Failed\.$/ {
      show(name ":")
      for (i = 0; i < found; i++) show("  " say[i])
    }' "$1/Testing/Temporary/LastTest.log"
}
