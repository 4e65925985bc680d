# LibTorch's headers take 10 s of a compiler's time in each source, and 2.7 s where they are
# precompiled: they are, once for the library and the trainers, and once for all tests of it. Several
# sources are compiled as one, of the libraries and of every test: half of the time that a test takes
# is its headers. So names in unnamed namespaces differ between the sources of a target.
#
#   hora_precompile(target HEADERS...)   as target_precompile_headers
#   hora_compile_together(target [SOURCES...])
#     Several of its sources as one, unless HORA_UNITY is OFF; `|` between SOURCES ends such a one,
#     as where names in unnamed namespaces are the same.
#   hora_precompile_as(target other)     what `other`, an earlier target of the same kind with the
#                                        same definitions, has precompiled

function(_hora_precompile target)
  target_precompile_headers(${target} ${ARGN})
  # For ccache (its manual, "Precompiled headers"), which also wants what tests/run.sh exports;
  # without, it compiles every time.
  target_compile_options(${target} PRIVATE
    $<$<COMPILE_LANG_AND_ID:CXX,GNU>:-fpch-preprocess>)
  # Some MPIs' wrappers add -pthread, which defines a macro: with it and without are not the same.
  target_compile_options(${target} PRIVATE
    $<TARGET_PROPERTY:MPI::MPI_CXX,INTERFACE_COMPILE_OPTIONS>)
endfunction()

# GCC never writes the same precompiled header twice, which would make every source new to ccache
# in each build folder. With CCACHE_PCH_EXTSUM it takes this file for what the headers say: they are
# those of installed packages, named by version and folder; options are part of every command.
function(_hora_name_precompiled target)
  string(REPLACE "${PROJECT_SOURCE_DIR}/" "" torch_folder "${LibTorch_INCLUDE_DIR}")
  file(WRITE ${CMAKE_CURRENT_BINARY_DIR}/CMakeFiles/${target}.dir/cmake_pch.hxx.gch.sum
    "${CMAKE_CXX_COMPILER_VERSION} LibTorch ${LibTorch_VERSION} ${torch_folder} "
    "GTest ${GTest_VERSION} ${ARGN}")
endfunction()

function(hora_precompile target)
  list(TRANSFORM ARGN REPLACE "(.+)" "$<$<COMPILE_LANGUAGE:CXX>:<\\1$<ANGLE-R>>" OUTPUT_VARIABLE headers)
  _hora_precompile(${target} PRIVATE ${headers})
  _hora_name_precompiled(${target} ${ARGN})
endfunction()

function(hora_precompile_as target other)
  _hora_precompile(${target} REUSE_FROM ${other})
endfunction()

# CMake's UNITY_BUILD names sources by absolute paths, in which __FILE__ of a test's checks and so the
# object differ between clones: ccache would compile them again in each.
function(hora_compile_together target)
  if(NOT HORA_UNITY)
    return()
  endif()
  set(sources ${ARGN})
  if(NOT sources)
    get_target_property(sources ${target} SOURCES)
  endif()
  set(text "")
  set(count 0)  # of sources in `text`
  set(all 0)
  foreach(source IN LISTS sources ITEMS "|")
    if(count GREATER 0 AND (count EQUAL 7 OR source STREQUAL "|"))
      math(EXPR first "${all} - ${count}")
      set(together ${CMAKE_CURRENT_BINARY_DIR}/CMakeFiles/${target}.dir/together_${first}.cpp)
      file(CONFIGURE OUTPUT ${together} CONTENT "${text}" @ONLY)
      target_sources(${target} PRIVATE ${together})
      set(text "")
      set(count 0)
    endif()
    get_source_file_property(definitions ${source} COMPILE_DEFINITIONS)
    if(source MATCHES "^[^$].*\\.cpp$" AND NOT definitions)
      set_source_files_properties(${source} PROPERTIES HEADER_FILE_ONLY ON)
      cmake_path(ABSOLUTE_PATH source NORMALIZE)
      cmake_path(RELATIVE_PATH source BASE_DIRECTORY ${PROJECT_SOURCE_DIR})
      string(APPEND text "#include \"${source}\"\n")
      math(EXPR count "${count} + 1")
      math(EXPR all "${all} + 1")
    endif()
  endforeach()
  # GCC takes what a source includes for headers, where unnamed namespaces are mistakes.
  target_compile_options(${target} PRIVATE
    $<$<COMPILE_LANG_AND_ID:CXX,GNU>:-Wno-subobject-linkage>)
endfunction()
