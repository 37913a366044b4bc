#!/bin/sh
# Runs in place of the compiler: takes an object from $reuse_from where that has it, instead of compiling it again.
object='' dependencies='' previous=''
for word in "$@"; do
  case $previous in
    -o) object=$word ;;
    -MF) dependencies=$word ;;
  esac
  previous=$word
done
built=$(find "${reuse_from:?}" -path "*/${object#*CMakeFiles/}" | head -n 1)
if [ -z "$object" ] || [ -z "$built" ]; then exec "$@"; fi
cp "$built" "$object"
[ -z "$dependencies" ] || echo "$object:" >"$dependencies"
