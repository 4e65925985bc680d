# hora_mpi_implementation(RESULT): which MPI find_package(MPI) has found for C++, from its mpi.h, as
# "Open MPI 4" or "MPICH 4": the library and the major version, within which programs and libraries
# fit together. Of another library: "MPI 3.1", the version of the standard.
function(hora_mpi_implementation result)
  find_file(header mpi.h PATHS ${MPI_CXX_INCLUDE_DIRS} NO_DEFAULT_PATH NO_CACHE)
  set(found "MPI ${MPI_CXX_VERSION}")
  if(header)
    file(STRINGS ${header} lines REGEX "define[ \t]+(OMPI_MAJOR_VERSION|MPICH_VERSION)[ \t]")
    if(lines MATCHES "OMPI_MAJOR_VERSION[ \t]+([0-9]+)")
      set(found "Open MPI ${CMAKE_MATCH_1}")
    elseif(lines MATCHES "MPICH_VERSION[ \t]+\"([0-9]+)")
      set(found "MPICH ${CMAKE_MATCH_1}")
    endif()
  endif()
  set(${result} ${found} PARENT_SCOPE)
endfunction()
