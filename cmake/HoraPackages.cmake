# cpack -G DEB: Debian's packages, one for each component of HoraInstall.cmake. cmake/package.sh
# does all of it.
set(CPACK_PACKAGE_NAME hora)
set(CPACK_PACKAGE_VENDOR hora)
set(CPACK_PACKAGE_CONTACT "hora's maintainers <maintainers@hora.example>")
set(CPACK_VERBATIM_VARIABLES ON)
set(CPACK_STRIP_FILES ON)
set(CPACK_PACKAGING_INSTALL_PREFIX ${CMAKE_INSTALL_PREFIX})
set(CPACK_COMPONENTS_ALL runtime horarun development)
if(TARGET hora_torch)
  list(APPEND CPACK_COMPONENTS_ALL torch)
endif()

set(CPACK_DEB_COMPONENT_INSTALL ON)
set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS ON)
set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS_PRIVATE_DIRS ${PROJECT_BINARY_DIR}/ops)
set(CPACK_DEBIAN_PACKAGE_CONTROL_STRICT_PERMISSION ON)
set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)

set(debian ${PROJECT_BINARY_DIR}/debian)
# hora_debian_package(COMPONENT NAME SECTION DEPENDS DESCRIPTION [LIBRARY])
function(hora_debian_package component name section depends description)
  string(TOUPPER ${component} part)
  set(CPACK_DEBIAN_${part}_PACKAGE_NAME ${name} PARENT_SCOPE)
  set(CPACK_DEBIAN_${part}_PACKAGE_SECTION ${section} PARENT_SCOPE)
  set(CPACK_DEBIAN_${part}_PACKAGE_DEPENDS "${depends}" PARENT_SCOPE)
  set(CPACK_COMPONENT_${part}_DESCRIPTION "${description}" PARENT_SCOPE)
  # Debian's policy, 8.1.1, 8.6, 12.5 and 12.7.
  if(ARGN)
    file(WRITE ${debian}/${name}/shlibs "${ARGN} ${HORA_SOVERSION} ${name} (>= ${PROJECT_VERSION})\n")
    file(WRITE ${debian}/${name}/triggers "activate-noawait ldconfig\n")
    set(CPACK_DEBIAN_${part}_PACKAGE_CONTROL_EXTRA
      ${debian}/${name}/shlibs ${debian}/${name}/triggers PARENT_SCOPE)
  endif()
  configure_file(packaging/debian/copyright ${debian}/${name}/copyright COPYONLY)
  configure_file(packaging/debian/changelog.in ${debian}/${name}/changelog @ONLY)
  execute_process(COMMAND gzip -9nf ${debian}/${name}/changelog COMMAND_ERROR_IS_FATAL ANY)
  install(FILES ${debian}/${name}/copyright ${debian}/${name}/changelog.gz EXCLUDE_FROM_ALL
    DESTINATION ${CMAKE_INSTALL_DATADIR}/doc/${name} COMPONENT ${component})
endfunction()

if(EXISTS /etc/debian_version)
  string(TIMESTAMP date "%a, %d %b %Y %H:%M:%S +0000" UTC)
  set(same_version "(= ${PROJECT_VERSION})")
  set(library libhora${HORA_SOVERSION})
  hora_debian_package(runtime ${library} libs ""
    "Collectives for C++ programs on many nodes, over MPI and shared memory." libhora)
  hora_debian_package(horarun horarun utils openmpi-bin
    "Starts the ranks of a job on one or several hosts, watches them, and says\nwhat happened when the job ends.")
  hora_debian_package(development libhora-dev libdevel "${library} ${same_version}, libopenmpi-dev"
    "Headers, package files for CMake and pkg-config, and documents.")
  hora_debian_package(torch libhora-torch-dev libdevel
    "libhora-dev ${same_version}, libtorch-dev"
    "hora::torch, its headers and its library, for Debian's LibTorch." libhora_torch)
endif()
include(CPack)
