# Finds NCCL and makes the target NCCL::NCCL.
#
#   NCCL_FOUND  NCCL_VERSION  NCCL_INCLUDE_DIR  NCCL_LIBRARY
#
# Looks in NCCL_ROOT, CMAKE_PREFIX_PATH, beside a Python wheel's LibTorch, which loads that copy, and
# in the CUDA toolkit. A wheel's NCCL has no `libnccl.so`, but the versioned name alone. Header and
# library come from one place.
set(_hints)
foreach(_prefix IN LISTS CMAKE_PREFIX_PATH)
  list(APPEND _hints ${_prefix}/../nvidia/nccl)
endforeach()
find_path(NCCL_INCLUDE_DIR nccl.h
  HINTS ${_hints} ${CUDAToolkit_INCLUDE_DIRS} PATH_SUFFIXES include)
if(NCCL_INCLUDE_DIR)
  cmake_path(GET NCCL_INCLUDE_DIR PARENT_PATH _prefix)
  set(_hints ${_prefix})
endif()
find_library(NCCL_LIBRARY NAMES nccl libnccl.so.2
  HINTS ${_hints} ${CUDAToolkit_LIBRARY_DIR} PATH_SUFFIXES lib lib64)
mark_as_advanced(NCCL_INCLUDE_DIR NCCL_LIBRARY)
if(NCCL_INCLUDE_DIR)
  file(STRINGS ${NCCL_INCLUDE_DIR}/nccl.h _lines REGEX "define NCCL_(MAJOR|MINOR|PATCH) ")
  string(REGEX MATCHALL "[0-9]+" _numbers "${_lines}")
  list(JOIN _numbers "." NCCL_VERSION)
endif()
include(FindPackageHandleStandardArgs)
find_package_handle_standard_args(NCCL
  REQUIRED_VARS NCCL_LIBRARY NCCL_INCLUDE_DIR VERSION_VAR NCCL_VERSION)
if(NCCL_FOUND AND NOT TARGET NCCL::NCCL)
  add_library(NCCL::NCCL UNKNOWN IMPORTED)
  set_target_properties(NCCL::NCCL PROPERTIES
    IMPORTED_LOCATION ${NCCL_LIBRARY} INTERFACE_INCLUDE_DIRECTORIES ${NCCL_INCLUDE_DIR})
endif()
unset(_hints)
unset(_prefix)
unset(_lines)
unset(_numbers)
