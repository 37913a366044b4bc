# Compiles several files as one, where LOCKSTEP_UNITY is on. Most of the time that a file of ours takes to compile goes
# into reading headers and into what LibTorch's headers instantiate, which is the same for all: a build from scratch
# takes half the time, and compiling again after a change takes longer. The preset dev, for work on Lockstep, does without.
option(LOCKSTEP_UNITY "Compile files in groups: faster from scratch, slower after a change" ON)
set(LOCKSTEP_UNITY_FILES 8 CACHE STRING "At most so many files are compiled as one")

# lockstep_in_groups(VARIABLE NAME): replaces the sources in the list VARIABLE by files that include them. NAME is for the
# names of these files. Only sources of equal COMPILE_OPTIONS, SKIP_PRECOMPILE_HEADERS and LOCKSTEP_GROUP come together:
# the last is a word for their files' names, where their objects are wanted without others. Call it when these are set.
function(lockstep_in_groups variable name)
  if(NOT LOCKSTEP_UNITY)
    return()
  endif()
  set(kinds "")
  foreach(source IN LISTS ${variable})
    get_source_file_property(options ${source} COMPILE_OPTIONS)
    get_source_file_property(skip ${source} SKIP_PRECOMPILE_HEADERS)
    get_source_file_property(word ${source} LOCKSTEP_GROUP)
    string(MD5 kind "${options} ${skip} ${word}")
    list(APPEND kinds ${kind})
    cmake_path(ABSOLUTE_PATH source)
    cmake_path(RELATIVE_PATH source BASE_DIRECTORY ${PROJECT_SOURCE_DIR}) # no spaces come from outside
    list(APPEND sources_${kind} ${source})
    set(options_${kind} "${options}")
    set(skip_${kind} ${skip})
    set(name_${kind} ${name})
    if(word)
      set(name_${kind} ${name}_${word})
    endif()
  endforeach()
  list(REMOVE_DUPLICATES kinds)
  set(all "")
  foreach(kind IN LISTS kinds)
    execute_process(
      COMMAND awk -v most=${LOCKSTEP_UNITY_FILES} -f ${PROJECT_SOURCE_DIR}/cmake/unity.awk ${sources_${kind}}
      WORKING_DIRECTORY ${PROJECT_SOURCE_DIR} OUTPUT_VARIABLE groups OUTPUT_STRIP_TRAILING_WHITESPACE COMMAND_ERROR_IS_FATAL ANY)
    string(REPLACE "\n" ";" groups "${groups}")
    foreach(group IN LISTS groups)
      list(LENGTH all number)
      set(file ${CMAKE_CURRENT_BINARY_DIR}/unity/${name_${kind}}_${number}.cpp)
      string(REPLACE " " "\"\n#include \"" group "${group}")
      file(CONFIGURE OUTPUT ${file} CONTENT "#include \"${group}\"\n" @ONLY)
      # GCC takes what is not in the main file for a header, where a member of an unnamed namespace's type is a mistake.
      # A local name may be that of another file's global one. Builds file by file warn of both where they are mistakes.
      set(own_options -Wno-subobject-linkage -Wno-shadow)
      if(options_${kind})
        list(APPEND own_options ${options_${kind}})
      endif()
      set_source_files_properties(${file} PROPERTIES COMPILE_OPTIONS "${own_options}")
      if(skip_${kind})
        set_source_files_properties(${file} PROPERTIES SKIP_PRECOMPILE_HEADERS ON)
      endif()
      list(APPEND all ${file})
    endforeach()
  endforeach()
  set(${variable} "${all}" PARENT_SCOPE)
endfunction()
