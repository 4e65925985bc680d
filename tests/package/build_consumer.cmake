# Installs hora, moves the installation, and builds the project in consumer/ against it.
# Run as a script: cmake -DHORA_BUILD=... (see CMakeLists.txt) -P build_consumer.cmake

function(run)
  execute_process(COMMAND ${ARGV} RESULT_VARIABLE result)
  if(NOT result EQUAL 0)
    list(JOIN ARGV " " command)
    message(FATAL_ERROR "exit code ${result}: ${command}")
  endif()
endfunction()

file(REMOVE_RECURSE ${WORK}/prefix ${WORK}/moved ${WORK}/build)
run(${CMAKE_COMMAND} --install ${HORA_BUILD} --prefix ${WORK}/prefix)
file(RENAME ${WORK}/prefix ${WORK}/moved)

# The package may not lead back to where it was built.
file(GLOB_RECURSE package_files ${WORK}/moved/*.cmake)
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

set(prefixes ${WORK}/moved)
if(LIBTORCH_INCLUDE_DIR)
  cmake_path(GET LIBTORCH_INCLUDE_DIR PARENT_PATH torch_prefix)
  list(APPEND prefixes ${torch_prefix})
endif()
list(JOIN prefixes "\\;" prefixes)  # one argument through run()
run(${CMAKE_COMMAND} -S ${CMAKE_CURRENT_LIST_DIR}/consumer -B ${WORK}/build -G ${GENERATOR}
  "-DCMAKE_PREFIX_PATH=${prefixes}" -DWITH_TORCH=${WITH_TORCH}
  -DCMAKE_CXX_COMPILER=${CXX_COMPILER} -DCMAKE_CXX_COMPILER_LAUNCHER=${CXX_LAUNCHER}
  "-DSANITIZE=${SANITIZE}")
run(${CMAKE_COMMAND} --build ${WORK}/build)
