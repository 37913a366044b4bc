#!/bin/sh
# Runs in place of the compiler: takes an object from $reuse_from where that has it, instead of compiling it again. Of a
# group of files it does so where both builds have the same files in it: what is in a group follows from the sources as
# they were when the build was configured.
object='' dependencies='' source='' previous=''
for word in "$@"; do
  case $previous in
    -o) object=$word ;;
    -MF) dependencies=$word ;;
    -c) source=$word ;;
  esac
  previous=$word
done
built=$(find "${reuse_from:?}" -path "*/${object#*CMakeFiles/}" | head -n 1)
if [ -z "$object" ] || [ -z "$built" ]; then exec "$@"; fi
case $source in
  */unity/*) cmp -s "$source" "${built%%CMakeFiles/*}unity/${source##*/}" || exec "$@" ;;
esac
cp "$built" "$object"
[ -z "$dependencies" ] || echo "$object:" >"$dependencies"
