# How tests are registered. Every source passed here is remembered, so that the test
# `test_files_are_listed` finds files that no build lists.
#
#   hora_add_test(name SOURCES a_test.cpp... | PROGRAM other [APART other=Suite.*:Suite2.*...]
#                 [LIBRARIES ...] [LABELS ...] [ENVIRONMENT A=1...] [TIMEOUT seconds] [OWN_MAIN])
#     One GoogleTest executable (PROGRAM: the one of the test `other`, run in another way), one
#     ctest: of all sources that share tier and libraries.
#     LABELS names the tier: values (the default) or threads.
#     LIBRARIES defaults to hora::hora; a test of internals names the object libraries it needs.
#     APART: cases, by a filter of GoogleTest, that are a ctest of that name in a process of their
#     own; `name` runs the others.
#     SOURCES: `|` between two begins another source of those that are compiled as one.
#
#   hora_add_mpi_test(name SOURCES ... | PROGRAM other [LAYOUTS 2 3/2...] [LIBRARIES ...]
#                     [LABELS ...] [ENVIRONMENT A=1...] [ARGUMENTS ...] [TIMEOUT seconds] [OWN_MAIN])
#     One executable (PROGRAM: the one of the test `other`, run in another way) under mpirun, one
#     ctest for each of LAYOUTS: a number of ranks, or ranks/ranks of a virtual node. The default is
#     2 3/2, one node and two unequal ones; conformance tests have one rank and two equal nodes, 1
#     and 4/2, as well. The ctest of 2 is `<name>_np2`, that of 3/2 `<name>_np3_rpn2`. Label: mpi.
#
#   hora_add_gpu_test(name SOURCES ... [LIBRARIES ...] [MPI] [OWN_MAIN])
#     A program for a machine with a GPU: built, not registered. tests/gpu.sh runs it.
#
# OWN_MAIN: the sources bring their own main() instead of tests/support/(mpi_)main.cpp.
# Exit code 77 means "skipped", and ctest says so.

# More ranks than cores, bound to none, that let others run while they wait.
include(HoraMpiImplementation)
hora_mpi_implementation(HORA_TEST_MPI)
if(HORA_TEST_MPI MATCHES "^Open MPI [1-4]$")
  set(_flags --oversubscribe --bind-to none --mca mpi_yield_when_idle 1 --mca btl self,vader,tcp)
elseif(HORA_TEST_MPI MATCHES "^Open MPI ")
  set(_flags --map-by :OVERSUBSCRIBE --bind-to none --mca mpi_yield_when_idle 1
    --mca btl self,sm,tcp)
elseif(HORA_TEST_MPI MATCHES "^MPICH ")
  set(_flags -bind-to none)
else()
  set(_flags "")
endif()
set(HORA_MPIEXEC_FLAGS ${_flags} CACHE STRING "Arguments of mpirun for tests")
unset(_flags)

# For every test; a test registered by hand takes it, too.
set(HORA_TEST_ENVIRONMENT
  OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 OMP_NUM_THREADS=1
  GTEST_COLOR=no)
if(HORA_SANITIZE)
  set(_folder ${PROJECT_SOURCE_DIR}/tests/support/sanitizers)
  list(APPEND HORA_TEST_ENVIRONMENT
    UBSAN_OPTIONS=print_stacktrace=1
    LSAN_OPTIONS=suppressions=${_folder}/lsan.supp:print_suppressions=0
    TSAN_OPTIONS=suppressions=${_folder}/tsan.supp)
  unset(_folder)
endif()
# Sanitizers make programs several times slower, and so does an MPI whose waiting ranks keep their
# cores where there are more ranks than cores.
set(HORA_TEST_TIMEOUT 120)
if(HORA_SANITIZE OR HORA_TEST_MPI MATCHES "^MPICH ")
  set(HORA_TEST_TIMEOUT 400)
endif()

function(hora_list_test_sources)
  foreach(source IN LISTS ARGN)
    cmake_path(ABSOLUTE_PATH source NORMALIZE)
    set_property(GLOBAL APPEND PROPERTY HORA_LISTED_TEST_SOURCES ${source})
  endforeach()
endfunction()

function(_hora_test_executable name own_main main_library)
  cmake_parse_arguments(PARSE_ARGV 3 TEST "" "" "SOURCES;LIBRARIES")
  if(NOT TEST_SOURCES)
    message(FATAL_ERROR "Test ${name}: SOURCES is empty")
  endif()
  if(NOT TEST_LIBRARIES)
    set(TEST_LIBRARIES hora::hora)
  endif()
  set(sources ${TEST_SOURCES})
  list(REMOVE_ITEM sources "|")
  hora_list_test_sources(${sources})
  add_executable(${name} ${sources})
  target_link_libraries(${name} PRIVATE
    ${TEST_LIBRARIES} hora_build_options hora_test_support GTest::gmock GTest::gtest)
  if(NOT own_main)
    target_link_libraries(${name} PRIVATE ${main_library})
  endif()
  hora_compile_together(${name} ${TEST_SOURCES})
  if("hora::torch" IN_LIST TEST_LIBRARIES)
    hora_precompile_as(${name} hora_test_torch_headers)
  endif()
endfunction()

# Builds what the thread tier needs: ThreadSanitizer has nothing to see in the others.
add_custom_target(tests_threads)

# What QEMU's user mode cannot do: states of processes, subreapers, filters of system calls; it
# prints a line where a process aborts.
string(JOIN ":" HORA_NOT_EMULATED ProcessState.OfAProcessThatIsStoppedGoesOnAndEnds
  KillDescendants.EndsThoseThatAreStoppedAndTheirChildren
  SteadyState.CallsTheSystemOnlyToSleepAndToWake TerminateReportDeathTest.NamesRankAndError)

function(hora_add_test name)
  cmake_parse_arguments(PARSE_ARGV 1 TEST "OWN_MAIN" "TIMEOUT;PROGRAM"
    "SOURCES;APART;LIBRARIES;LABELS;ENVIRONMENT")
  if(TEST_UNPARSED_ARGUMENTS)
    message(FATAL_ERROR "hora_add_test(${name}): unknown arguments ${TEST_UNPARSED_ARGUMENTS}")
  endif()
  if(NOT TEST_LABELS)
    set(TEST_LABELS values)
  endif()
  if(NOT TEST_TIMEOUT)
    set(TEST_TIMEOUT ${HORA_TEST_TIMEOUT})
  endif()
  if(NOT TEST_PROGRAM)
    set(TEST_PROGRAM ${name})
    _hora_test_executable(${name} ${TEST_OWN_MAIN} hora_test_main
      SOURCES ${TEST_SOURCES} LIBRARIES ${TEST_LIBRARIES})
  endif()
  if(threads IN_LIST TEST_LABELS)
    add_dependencies(tests_threads ${TEST_PROGRAM})
  endif()
  set(environment ${HORA_TEST_ENVIRONMENT} ${TEST_ENVIRONMENT})
  set(rest "")
  set(tests ${name})
  foreach(part IN LISTS TEST_APART)
    if(NOT part MATCHES "^([a-z0-9_]+)=(.+)$")
      message(FATAL_ERROR "hora_add_test(${name}): ${part} is no test=filter")
    endif()
    list(APPEND tests ${CMAKE_MATCH_1})
    set(filter_of_${CMAKE_MATCH_1} ${CMAKE_MATCH_2})
    string(APPEND rest ":${CMAKE_MATCH_2}")
  endforeach()
  string(REGEX REPLACE "^:" "-" filter_of_${name} "${rest}")
  foreach(test IN LISTS tests)
    set(filter "${filter_of_${test}}")
    if(CMAKE_CROSSCOMPILING)
      if(NOT filter MATCHES "-")
        string(APPEND filter "-")
      endif()
      string(APPEND filter ":${HORA_NOT_EMULATED}")
    endif()
    add_test(NAME ${test} COMMAND ${TEST_PROGRAM})
    set(own ${environment})
    if(filter)
      list(APPEND own "GTEST_FILTER=${filter}")
    endif()
    set_tests_properties(${test} PROPERTIES
      LABELS "${TEST_LABELS}" TIMEOUT ${TEST_TIMEOUT} SKIP_RETURN_CODE 77 ENVIRONMENT "${own}")
  endforeach()
endfunction()

function(hora_add_gpu_test name)
  cmake_parse_arguments(PARSE_ARGV 1 TEST "MPI;OWN_MAIN" "" "SOURCES;LIBRARIES")
  if(TEST_UNPARSED_ARGUMENTS)
    message(FATAL_ERROR "hora_add_gpu_test(${name}): unknown arguments ${TEST_UNPARSED_ARGUMENTS}")
  endif()
  set(main hora_test_main)
  if(TEST_MPI)
    set(main hora_test_mpi_main)
  endif()
  _hora_test_executable(${name} ${TEST_OWN_MAIN} ${main}
    SOURCES ${TEST_SOURCES} LIBRARIES ${TEST_LIBRARIES})
  target_link_libraries(${name} PRIVATE CUDA::cudart)
  if(TEST_MPI)
    target_link_libraries(${name} PRIVATE MPI::MPI_CXX)
  endif()
endfunction()

# `timeout` ends mpirun by SIGTERM, upon which it ends its ranks; ctest's own SIGKILL, some
# seconds later, would leave them running.
function(_hora_register_mpi_test test ranks seconds labels environment)
  math(EXPR ctest_seconds "${seconds} + 20")
  set(environment ${HORA_TEST_ENVIRONMENT} ${environment})
  add_test(NAME ${test} COMMAND
    timeout --foreground --kill-after=10 ${seconds}
    ${MPIEXEC_EXECUTABLE} ${HORA_MPIEXEC_FLAGS} ${MPIEXEC_NUMPROC_FLAG} ${ranks} ${ARGN})
  set_tests_properties(${test} PROPERTIES
    LABELS "${labels}" TIMEOUT ${ctest_seconds} PROCESSORS ${ranks} SKIP_RETURN_CODE 77
    ENVIRONMENT "${environment}")
endfunction()

function(hora_add_mpi_test name)
  cmake_parse_arguments(PARSE_ARGV 1 TEST "OWN_MAIN" "TIMEOUT;PROGRAM"
    "SOURCES;LIBRARIES;LABELS;ENVIRONMENT;ARGUMENTS;LAYOUTS")
  if(TEST_UNPARSED_ARGUMENTS)
    message(FATAL_ERROR "hora_add_mpi_test(${name}): unknown arguments ${TEST_UNPARSED_ARGUMENTS}")
  endif()
  if(NOT TEST_LAYOUTS)
    set(TEST_LAYOUTS 2 3/2)
  endif()
  if(NOT TEST_TIMEOUT)
    set(TEST_TIMEOUT ${HORA_TEST_TIMEOUT})
  endif()
  if(NOT TEST_PROGRAM)
    set(TEST_PROGRAM ${name})
    _hora_test_executable(${name} ${TEST_OWN_MAIN} hora_test_mpi_main
      SOURCES ${TEST_SOURCES} LIBRARIES ${TEST_LIBRARIES})
    target_link_libraries(${name} PRIVATE MPI::MPI_CXX)
  endif()

  foreach(layout IN LISTS TEST_LAYOUTS)
    string(REGEX MATCH "^([1-9]+)(/([1-9]+))?$" matched "${layout}")
    if(NOT matched)
      message(FATAL_ERROR "hora_add_mpi_test(${name}): ${layout} is no layout, as 2 or 3/2 is")
    endif()
    set(ranks ${CMAKE_MATCH_1})
    set(test ${name}_np${ranks})
    set(environment ${TEST_ENVIRONMENT})
    if(CMAKE_MATCH_3)
      string(APPEND test _rpn${CMAKE_MATCH_3})
      list(APPEND environment HORA_RANKS_PER_NODE=${CMAKE_MATCH_3})
    endif()
    _hora_register_mpi_test(${test} ${ranks} ${TEST_TIMEOUT} "mpi;${TEST_LABELS}"
      "${environment}" $<TARGET_FILE:${TEST_PROGRAM}> ${TEST_ARGUMENTS})
  endforeach()
endfunction()
