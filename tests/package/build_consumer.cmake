# Installs hora, moves the installation, and builds the project in consumer/ against it.
# Run as a script: cmake -DHORA_BUILD=... (see CMakeLists.txt) -P build_consumer.cmake

function(run)
  execute_process(COMMAND ${ARGV} RESULT_VARIABLE result)
  if(NOT result EQUAL 0)
    list(JOIN ARGV " " command)
    message(FATAL_ERROR "exit code ${result}: ${command}")
  endif()
endfunction()

file(REMOVE_RECURSE ${WORK}/prefix ${WORK}/moved ${WORK}/build ${WORK}/build_other)
run(${CMAKE_COMMAND} --install ${HORA_BUILD} --prefix ${WORK}/prefix)
file(RENAME ${WORK}/prefix ${WORK}/moved)

# The package may not lead back to where it was built.
file(GLOB_RECURSE package_files ${WORK}/moved/*.cmake ${WORK}/moved/hora.pc)
if(NOT package_files)
  message(FATAL_ERROR "no package files in ${WORK}/moved")
endif()
foreach(file IN LISTS package_files)
  file(READ ${file} text)
  foreach(path IN ITEMS ${HORA_SOURCE}/ ${HORA_BUILD}/)
    string(FIND "${text}" "${path}" position)
    if(NOT position EQUAL -1)
      message(FATAL_ERROR "${file} names ${path}")
    endif()
  endforeach()
endforeach()

foreach(document IN ITEMS README.md docs/training.md core/README.md examples/recipes/errors.cpp)
  if(NOT EXISTS ${WORK}/moved/share/doc/hora/${document})
    message(FATAL_ERROR "share/doc/hora has no ${document}")
  endif()
endforeach()

set(prefixes ${WORK}/moved)
# /usr would bring the system's MPI in place of the one that is named.
if(LIBTORCH_INCLUDE_DIR AND NOT LIBTORCH_INCLUDE_DIR STREQUAL "/usr/include")
  cmake_path(GET LIBTORCH_INCLUDE_DIR PARENT_PATH torch_prefix)
  list(APPEND prefixes ${torch_prefix})
endif()
list(JOIN prefixes ":" prefixes)
set(ENV{CMAKE_PREFIX_PATH} "${prefixes}")
set(configure ${CMAKE_COMMAND} -S ${CMAKE_CURRENT_LIST_DIR}/consumer -G ${GENERATOR}
  -DWITH_TORCH=${WITH_TORCH}
  -DCMAKE_CXX_COMPILER=${CXX_COMPILER} -DCMAKE_CXX_COMPILER_LAUNCHER=${CXX_LAUNCHER}
  "-DSANITIZE=${SANITIZE}")

# A consumer whose MPI is another one is refused: here one of the same kind, by its mpi.h.
file(REMOVE_RECURSE ${WORK}/other)
file(WRITE ${WORK}/other/mpi.h
  "#undef OMPI_MAJOR_VERSION\n#undef MPICH_VERSION\n#include_next <mpi.h>\n"
  "#undef MPICH_VERSION\n#define MPICH_VERSION \"999.1\"\n")
file(WRITE ${WORK}/other/mpicxx
  "#!/bin/sh\n"
  "case $1 in -show* | -compile* | -link*) options=$('${MPI_COMPILER}' \"$@\") || exit\n"
  "  echo \" $options\" | sed 's| -I| -I${WORK}/other -I|' ;;\n"
  "*) exec '${MPI_COMPILER}' \"$@\" ;; esac\n")
file(CHMOD ${WORK}/other/mpicxx PERMISSIONS OWNER_READ OWNER_WRITE OWNER_EXECUTE)
execute_process(COMMAND ${configure} -B ${WORK}/build_other
  -DMPI_CXX_COMPILER=${WORK}/other/mpicxx
  RESULT_VARIABLE result OUTPUT_QUIET ERROR_VARIABLE text)
string(REGEX REPLACE "[ \n]+" " " text "${text}")
if(result EQUAL 0 OR NOT text MATCHES "hora was built with .* gives MPICH 999 ")
  message(FATAL_ERROR "exit code ${result} of a consumer with another MPI: ${text}")
endif()

# Likewise one whose LibTorch is another one.
if(WITH_TORCH)
  foreach(file IN ITEMS torch.h version.h)
    file(WRITE ${WORK}/other/include/torch/csrc/api/include/torch/${file}
      "#define TORCH_VERSION_MAJOR 999\n#define TORCH_VERSION_MINOR 1\n#define TORCH_VERSION_PATCH 0\n")
  endforeach()
  file(MAKE_DIRECTORY ${WORK}/other/lib)
  file(TOUCH ${WORK}/other/lib/libtorch_cpu.so ${WORK}/other/lib/libc10.so)
  execute_process(COMMAND ${configure} -B ${WORK}/build_other --fresh -DLibTorch_ROOT=${WORK}/other
    RESULT_VARIABLE result OUTPUT_QUIET ERROR_VARIABLE text)
  string(REGEX REPLACE "[ \n]+" " " text "${text}")
  if(result EQUAL 0 OR NOT text MATCHES "was built with LibTorch [0-9.]+, but here is 999.1.0 ")
    message(FATAL_ERROR "exit code ${result} of a consumer with another LibTorch: ${text}")
  endif()
endif()

run(${configure} -B ${WORK}/build)
run(${CMAKE_COMMAND} --build ${WORK}/build)
