# Finds the C++ library of PyTorch, 1.13 or newer, and makes the target LibTorch::LibTorch.
#
#   LibTorch_FOUND  LibTorch_VERSION  LibTorch_INCLUDE_DIRS  LibTorch_HAS_CUDA
#
# Looks in CMAKE_PREFIX_PATH, LibTorch_ROOT, beside Torch_DIR, and where the system keeps libraries
# (Debian's libtorch-dev). CMAKE_PREFIX_PATH=<site-packages>/torch takes a Python wheel's, and
# an unpacked libtorch archive works in the same way.
#
# Not LibTorch's own package file: with a CUDA build it wants nvcc in every consumer, it adds flags
# to CMAKE_CXX_FLAGS and an old language standard to its target, and where two LibTorch are
# installed it mixes the libraries of one with the headers of the other. Here headers and libraries
# come from one prefix.

set(_hints)
if(Torch_DIR)
  cmake_path(SET _prefix NORMALIZE "${Torch_DIR}/../../..")
  list(APPEND _hints ${_prefix})
endif()

find_path(LibTorch_INCLUDE_DIR torch/csrc/api/include/torch/torch.h HINTS ${_hints})
mark_as_advanced(LibTorch_INCLUDE_DIR)

if(LibTorch_INCLUDE_DIR)
  cmake_path(GET LibTorch_INCLUDE_DIR PARENT_PATH _prefix)
  set(_folders ${_prefix}/lib)
  if(CMAKE_LIBRARY_ARCHITECTURE)
    list(PREPEND _folders ${_prefix}/lib/${CMAKE_LIBRARY_ARCHITECTURE})
  endif()
  foreach(_name IN ITEMS torch_cpu c10 torch_cuda c10_cuda fmt)
    find_library(LibTorch_${_name}_LIBRARY ${_name} PATHS ${_folders} NO_DEFAULT_PATH)
    mark_as_advanced(LibTorch_${_name}_LIBRARY)
  endforeach()

  # Newer versions keep the numbers in the second file.
  foreach(_file IN ITEMS torch/csrc/api/include/torch/version.h torch/headeronly/version.h)
    if(NOT LibTorch_VERSION AND EXISTS ${LibTorch_INCLUDE_DIR}/${_file})
      file(STRINGS ${LibTorch_INCLUDE_DIR}/${_file} _lines
        REGEX "define TORCH_VERSION_(MAJOR|MINOR|PATCH) ")
      string(REGEX MATCHALL "[0-9]+" _numbers "${_lines}")
      list(JOIN _numbers "." LibTorch_VERSION)
    endif()
  endforeach()
endif()

# Wheels and archives before 2.6 may have std::string's old layout, with which nothing else links.
set(LibTorch_NEW_STRING_ABI TRUE)
if(LibTorch_INCLUDE_DIR AND EXISTS ${_prefix}/share/cmake/Torch/TorchConfig.cmake)
  file(STRINGS ${_prefix}/share/cmake/Torch/TorchConfig.cmake _lines
    REGEX "-D_GLIBCXX_USE_CXX11_ABI=0")
  if(_lines)
    set(LibTorch_NEW_STRING_ABI FALSE)
  endif()
endif()

set(LibTorch_INCLUDE_DIRS
  ${LibTorch_INCLUDE_DIR} ${LibTorch_INCLUDE_DIR}/torch/csrc/api/include)

include(FindPackageHandleStandardArgs)
find_package_handle_standard_args(LibTorch
  REQUIRED_VARS LibTorch_torch_cpu_LIBRARY LibTorch_c10_LIBRARY LibTorch_INCLUDE_DIR LibTorch_NEW_STRING_ABI
  VERSION_VAR LibTorch_VERSION
  REASON_FAILURE_MESSAGE
    "install libtorch-dev, or pass -DCMAKE_PREFIX_PATH=<site-packages>/torch, or turn HORA_TORCH off (\
a build with the old C++ ABI, LibTorch_NEW_STRING_ABI = FALSE, does not serve)")

set(LibTorch_HAS_CUDA FALSE)
if(LibTorch_torch_cuda_LIBRARY AND LibTorch_c10_cuda_LIBRARY)
  set(LibTorch_HAS_CUDA TRUE)
endif()

if(LibTorch_FOUND AND NOT TARGET LibTorch::LibTorch)
  add_library(LibTorch::LibTorch INTERFACE IMPORTED)
  target_include_directories(LibTorch::LibTorch SYSTEM INTERFACE ${LibTorch_INCLUDE_DIRS})
  target_link_libraries(LibTorch::LibTorch INTERFACE
    ${LibTorch_torch_cpu_LIBRARY} ${LibTorch_c10_LIBRARY})
  # A wheel brings the headers of its fmt, which hide the system's, but no library for them.
  if(EXISTS ${LibTorch_INCLUDE_DIR}/fmt AND NOT LibTorch_fmt_LIBRARY)
    target_compile_definitions(LibTorch::LibTorch INTERFACE FMT_HEADER_ONLY)
  endif()
  if(LibTorch_HAS_CUDA)
    # Nothing refers to torch_cuda's symbols; loading it registers the CUDA backend.
    target_link_libraries(LibTorch::LibTorch INTERFACE
      "-Wl,--push-state,--no-as-needed,${LibTorch_torch_cuda_LIBRARY},--pop-state"
      ${LibTorch_c10_cuda_LIBRARY})
  endif()
endif()

unset(_hints)
unset(_prefix)
unset(_folders)
unset(_file)
unset(_lines)
unset(_numbers)
