# Builds the programs in consumer/ as a project without CMake does: by pkg-config, against the
# installation that build_consumer.cmake has moved.
# Run as a script: cmake -DWORK=... (see CMakeLists.txt) -P build_by_pkg_config.cmake

function(run result)
  execute_process(COMMAND ${ARGN} RESULT_VARIABLE code OUTPUT_VARIABLE output
    OUTPUT_STRIP_TRAILING_WHITESPACE)
  if(NOT code EQUAL 0)
    list(JOIN ARGN " " command)
    message(FATAL_ERROR "exit code ${code}: ${command}\n${output}")
  endif()
  set(${result} "${output}" PARENT_SCOPE)
endfunction()

if(NOT PKG_CONFIG)
  message(FATAL_ERROR "There is no pkg-config here: install pkgconf, and configure again")
endif()
file(GLOB_RECURSE file ${WORK}/moved/hora.pc)
cmake_path(GET file PARENT_PATH folder)
set(ENV{PKG_CONFIG_PATH} ${folder})

file(REMOVE_RECURSE ${WORK}/build_by_pkg_config)
file(MAKE_DIRECTORY ${WORK}/build_by_pkg_config)
# build PACKAGE PROGRAM
function(build package program)
  set(path ${WORK}/build_by_pkg_config/${program})
  run(validated ${PKG_CONFIG} --validate ${package})
  run(cflags ${PKG_CONFIG} --cflags ${package})
  run(libs ${PKG_CONFIG} --libs ${package})
  run(folder ${PKG_CONFIG} --variable=libdir ${package})
  separate_arguments(cflags UNIX_COMMAND "${cflags}")
  separate_arguments(libs UNIX_COMMAND "${libs}")
  if(SANITIZE)
    list(APPEND libs -fsanitize=${SANITIZE})
  endif()
  run(compiled ${CXX_LAUNCHER} ${CXX_COMPILER} -std=c++20 ${cflags}
    -c ${CMAKE_CURRENT_LIST_DIR}/consumer/${program}.cpp -o ${path}.o)
  # A shared hora is in no folder where programs look for libraries.
  run(linked ${CXX_COMPILER} ${path}.o -o ${path} ${libs} -Wl,-rpath,${folder})
endfunction()

build(hora plain)
if(WITH_TORCH)
  build(hora-torch with_torch)
endif()
