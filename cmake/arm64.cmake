# For 64-bit ARM from another machine: Debian's cross compiler, the arm64 packages that
# cmake/arm64_sysroot.sh unpacks, and QEMU's user mode, in which ctest runs what was built.
set(CMAKE_SYSTEM_NAME Linux)
set(CMAKE_SYSTEM_PROCESSOR aarch64)
set(CMAKE_C_COMPILER aarch64-linux-gnu-gcc)
set(CMAKE_CXX_COMPILER aarch64-linux-gnu-g++)
cmake_path(SET CMAKE_SYSROOT NORMALIZE "${CMAKE_CURRENT_LIST_DIR}/../build/arm64-sysroot")
set(CMAKE_CROSSCOMPILING_EMULATOR "qemu-aarch64;-L;${CMAKE_SYSROOT}")

# Programs are this machine's, all else is the other's.
set(CMAKE_FIND_ROOT_PATH_MODE_PROGRAM NEVER)
set(CMAKE_FIND_ROOT_PATH_MODE_LIBRARY ONLY)
set(CMAKE_FIND_ROOT_PATH_MODE_INCLUDE ONLY)
set(CMAKE_FIND_ROOT_PATH_MODE_PACKAGE ONLY)
set(ENV{PKG_CONFIG_SYSROOT_DIR} "${CMAKE_SYSROOT}")
set(ENV{PKG_CONFIG_LIBDIR}
  "${CMAKE_SYSROOT}/usr/lib/aarch64-linux-gnu/pkgconfig:${CMAKE_SYSROOT}/usr/share/pkgconfig")

# Open MPI's mpicxx there is a program of the other machine: it is not asked.
set(_libraries ${CMAKE_SYSROOT}/usr/lib/aarch64-linux-gnu)
set(MPI_CXX_COMPILER ${CMAKE_CXX_COMPILER} CACHE FILEPATH "")
set(MPI_CXX_COMPILER_INCLUDE_DIRS ${_libraries}/openmpi/include CACHE STRING "")
set(MPI_CXX_LIB_NAMES mpi CACHE STRING "")
set(MPI_mpi_LIBRARY ${_libraries}/openmpi/lib/libmpi.so CACHE FILEPATH "")
set(MPI_CXX_SKIP_MPICXX ON CACHE BOOL "")
# Libraries that those above need.
set(CMAKE_EXE_LINKER_FLAGS_INIT "-Wl,-rpath-link,${_libraries}")
set(CMAKE_SHARED_LINKER_FLAGS_INIT "-Wl,-rpath-link,${_libraries}")
unset(_libraries)
