# What every target of this project is compiled with: hora_build_options, and directory-wide settings.

set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_POSITION_INDEPENDENT_CODE ON)
set(CMAKE_EXPORT_COMPILE_COMMANDS ${PROJECT_IS_TOP_LEVEL})
# Shared libraries export what HORA_EXPORT marks (core/include/hora/export.h).
set(CMAKE_CXX_VISIBILITY_PRESET hidden)
set(CMAKE_CUDA_VISIBILITY_PRESET hidden)
set(CMAKE_VISIBILITY_INLINES_HIDDEN ON)
# Installed libraries find a LibTorch or MPI that is not in the system's folders.
set(CMAKE_INSTALL_RPATH_USE_LINK_PATH ON)

get_property(multi_config GLOBAL PROPERTY GENERATOR_IS_MULTI_CONFIG)
if(PROJECT_IS_TOP_LEVEL AND NOT CMAKE_BUILD_TYPE AND NOT multi_config)
  set(CMAKE_BUILD_TYPE Release CACHE STRING "Debug, Release, RelWithDebInfo or MinSizeRel" FORCE)
endif()

find_program(CCACHE ccache)
mark_as_advanced(CCACHE)
if(PROJECT_IS_TOP_LEVEL AND CCACHE AND NOT CMAKE_CXX_COMPILER_LAUNCHER)
  set(CMAKE_CXX_COMPILER_LAUNCHER ${CCACHE})
endif()

# Everywhere, or the linker misses the sanitizer's library.
if(HORA_SANITIZE)
  add_compile_options(-fsanitize=${HORA_SANITIZE} -fno-sanitize-recover=all
    -fno-omit-frame-pointer)
  add_link_options(-fsanitize=${HORA_SANITIZE})
endif()

if(HORA_FUZZ)
  add_compile_options(-fsanitize=fuzzer-no-link)
endif()

# -ffp-contract=off: a fused multiply-add would make the bits depend on the vector width.
# -Wno-restrict: GCC 12 warns of an overlap in std::string's operator+ where there is none (GCC bug
# 105651, fixed in 13).
add_library(hora_build_options INTERFACE)
set(_compile_options -Wall -Wextra -Wpedantic -Wshadow -Wconversion -Wno-sign-conversion -ffp-contract=off
  $<$<AND:$<CXX_COMPILER_ID:GNU>,$<VERSION_LESS:$<CXX_COMPILER_VERSION>,13>>:-Wno-restrict>
  $<$<BOOL:${HORA_WERROR}>:-Werror>)
target_compile_options(hora_build_options INTERFACE "$<$<COMPILE_LANGUAGE:CXX>:${_compile_options}>")
# No -Wpedantic, -Wconversion: nvcc's own code between the lines has what they warn of.
target_compile_options(hora_build_options INTERFACE
  "$<$<COMPILE_LANGUAGE:CUDA>:-Xcompiler=-Wall,-Wextra,-Wshadow$<$<BOOL:${HORA_WERROR}>:;-Werror=all-warnings>>")
unset(_compile_options)
target_include_directories(hora_build_options INTERFACE ${PROJECT_SOURCE_DIR})
