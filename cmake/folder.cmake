# How the files of a folder of lockstep/ are compiled.
include(${PROJECT_SOURCE_DIR}/cmake/layers.cmake)

# The library's inner loops are compiled once for each set of vector instructions; core/loops/simd.cpp chooses at run
# time. Some need a fused multiply-add.
if(CMAKE_SYSTEM_PROCESSOR MATCHES "x86_64|AMD64")
  set(lockstep_vector_sets avx2 avx2_vaes avx512)
  set(lockstep_fma_sets avx2 avx512)
  set(flag_fma -mfma)
  set(flags_avx2 -mavx2)
  set(flags_avx2_vaes -mavx2 -maes -mvaes)
  # GCC 12 warns about its AVX-512 header.
  set(flags_avx512 -mavx512f -mavx512dq -maes -mvaes -Wno-maybe-uninitialized -Wno-uninitialized)
  target_compile_definitions(lockstep_options INTERFACE LOCKSTEP_WIDE_SIMD)
elseif(CMAKE_SYSTEM_PROCESSOR MATCHES "aarch64|arm64")
  # Every one of these processors has NEON with a fused multiply-add, and the plain loops are compiled for it too.
  set(lockstep_fma_sets neon)
  target_compile_definitions(lockstep_options INTERFACE LOCKSTEP_NEON)
endif()

# lockstep_folder(FOLDER [LIBRARY TARGET] [LOOPS FAMILY...] [FMA_LOOPS FAMILY...] [PLAIN FILE...] [ATEN FILE...]):
# compiles a folder as the target lockstep_FOLDER, makes it a part of the library, and checks by linking that it uses no
# later folder.
# LIBRARY: the library that it is a part of, if that is not lockstep.
# PLAIN and ATEN: most files need ATen's operators, whose headers take 12 s to compile, or 2 s precompiled; the others
# compile faster without.
# LOOPS: FAMILY_plain.cpp, and a file for each set of vector instructions. FMA_LOOPS: only for sets that have a fused
# multiply-add.
function(lockstep_folder folder)
  cmake_parse_arguments(arg "" "LIBRARY" "LOOPS;FMA_LOOPS;PLAIN;ATEN" ${ARGN})
  if(NOT arg_LIBRARY)
    set(arg_LIBRARY lockstep)
  endif()
  set(loops ${arg_LOOPS})
  list(TRANSFORM loops APPEND _plain.cpp)
  foreach(set IN LISTS lockstep_vector_sets)
    foreach(family IN LISTS arg_LOOPS)
      list(APPEND loops ${family}_${set}.cpp)
      set_source_files_properties(${family}_${set}.cpp PROPERTIES COMPILE_OPTIONS "${flags_${set}}")
    endforeach()
  endforeach()
  foreach(set IN LISTS lockstep_fma_sets)
    foreach(family IN LISTS arg_FMA_LOOPS)
      list(APPEND loops ${family}_${set}.cpp)
      set(flags ${flags_${set}} ${flag_fma})
      # The group is its own, because without flags it would be compiled together with the plain loops.
      set_source_files_properties(${family}_${set}.cpp PROPERTIES COMPILE_OPTIONS "${flags}" LOCKSTEP_GROUP ${set})
    endforeach()
  endforeach()
  if(loops)
    # Optimised in every build type: unoptimised vector code is a hundred times slower. They include nothing of LibTorch.
    set_property(SOURCE ${loops} APPEND PROPERTY COMPILE_OPTIONS -O3 -fno-trapping-math)
  endif()
  set_property(SOURCE ${loops} ${arg_PLAIN} PROPERTY SKIP_PRECOMPILE_HEADERS ON)
  set(files ${arg_PLAIN} ${arg_ATEN} ${loops})
  # The fuzz targets are linked with the objects of these alone. Groups are the same in builds without tests.
  if(LOCKSTEP_UNITY)
    file(STRINGS ${PROJECT_SOURCE_DIR}/tests/fuzz/sources.txt fuzzed REGEX "^${folder}/")
    list(TRANSFORM fuzzed PREPEND ${PROJECT_SOURCE_DIR}/lockstep/)
    if(fuzzed)
      file(GLOB fuzzed RELATIVE ${CMAKE_CURRENT_SOURCE_DIR} CONFIGURE_DEPENDS ${fuzzed})
      set_property(SOURCE ${fuzzed} PROPERTY LOCKSTEP_GROUP fuzzed)
    endif()
  endif()
  lockstep_in_groups(files ${folder})
  set(target lockstep_${folder})
  add_library(${target} OBJECT ${files})
  get_target_property(built_when_linked ${arg_LIBRARY} EXCLUDE_FROM_ALL)
  if(built_when_linked)
    set_target_properties(${target} PROPERTIES EXCLUDE_FROM_ALL ON)
  endif()
  target_compile_features(${target} PRIVATE cxx_std_20)
  target_include_directories(${target} PRIVATE ${PROJECT_SOURCE_DIR} ${PROJECT_BINARY_DIR}/headers)
  target_include_directories(${target} SYSTEM PRIVATE ${XXHASH_INCLUDE_DIR} ${ASIO_INCLUDE_DIR})
  target_link_libraries(${target} PRIVATE LibTorch::LibTorch lockstep_options ${private_libraries} nlohmann_json::nlohmann_json)
  set_target_properties(${target} PROPERTIES POSITION_INDEPENDENT_CODE ON)
  if(folder STREQUAL "core")
    target_precompile_headers(${target} PRIVATE <ATen/ATen.h>)
  else()
    target_precompile_headers(${target} REUSE_FROM lockstep_core)
  endif()
  target_sources(${arg_LIBRARY} PRIVATE $<TARGET_OBJECTS:${target}>)
  if(LOCKSTEP_BUILD_TESTS AND NOT LOCKSTEP_SANITIZE)
    lockstep_link_check(${folder})
  endif()
endfunction()
