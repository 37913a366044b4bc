# The order of the library's folders, which scripts/check-layers reads here, and the check that a folder's objects call
# nothing of the folders after it: each folder is linked with those before it, and nothing may be undefined.
set(layers core memory cluster comm intercept reduce replica layers variable data linear gradient exchange optim capture strategy checkpoint train server choice testing)

# lockstep_link_check(FOLDER): the target lockstep_links_FOLDER links the objects of this folder and of those before it, and
# fails where they use what only a later folder defines. lockstep_links is all of these targets.
function(lockstep_link_check folder)
  set(target lockstep_links_${folder})
  list(FIND layers ${folder} here)
  add_library(${target} SHARED EXCLUDE_FROM_ALL)
  foreach(layer IN LISTS layers)
    list(FIND layers ${layer} index)
    if(index LESS_EQUAL here AND TARGET lockstep_${layer})
      target_sources(${target} PRIVATE $<TARGET_OBJECTS:lockstep_${layer}>)
    endif()
  endforeach()
  target_link_options(${target} PRIVATE -Wl,--no-undefined -Wl,--strip-debug)
  target_link_libraries(${target} PRIVATE LibTorch::LibTorch ${private_libraries})
  set_target_properties(${target} PROPERTIES LINKER_LANGUAGE CXX)
  if(NOT TARGET lockstep_links)
    add_custom_target(lockstep_links)
  endif()
  add_dependencies(lockstep_links ${target})
endfunction()
