# Components, each a package of Debian's: runtime (libhora), horarun, development, torch (hora::torch,
# with its headers).
#
# cmake --install: horarun with its man page and bash completion, libraries, public headers, the
# package files for find_package(hora) and for pkg-config, and the READMEs, in folders as here.
include(GNUInstallDirs)
include(CMakePackageConfigHelpers)

set(package_folder ${CMAKE_INSTALL_LIBDIR}/cmake/hora)
set(package_files ${CMAKE_CURRENT_SOURCE_DIR}/cmake/HoraMpiImplementation.cmake
  ${CMAKE_CURRENT_BINARY_DIR}/hora-config.cmake
  ${CMAKE_CURRENT_BINARY_DIR}/hora-config-version.cmake)

install(TARGETS horarun RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR} COMPONENT horarun)
# bash-completion loads the file that has the command's name.
set(man_page ${CMAKE_CURRENT_BINARY_DIR}/horarun.1.gz)
set(completion ${CMAKE_CURRENT_BINARY_DIR}/completions/horarun)
add_custom_command(
  OUTPUT ${man_page} ${completion}
  COMMAND ${CMAKE_COMMAND} -E make_directory ${CMAKE_CURRENT_BINARY_DIR}/completions
  COMMAND ${CMAKE_CURRENT_SOURCE_DIR}/cmake/horarun_documents.sh ${PROJECT_VERSION} ${man_page}
          ${completion} ${CMAKE_CROSSCOMPILING_EMULATOR} $<TARGET_FILE:horarun>
  DEPENDS horarun cmake/horarun_documents.sh
  COMMENT "Writing horarun's man page and completion"
  VERBATIM)
add_custom_target(horarun_documents ALL DEPENDS ${man_page} ${completion})
install(FILES ${man_page} DESTINATION ${CMAKE_INSTALL_MANDIR}/man1 COMPONENT horarun)
install(FILES ${completion} DESTINATION ${CMAKE_INSTALL_DATADIR}/bash-completion/completions
  COMPONENT horarun)

# install() takes the component of what follows from CMAKE_INSTALL_DEFAULT_COMPONENT_NAME.
set(CMAKE_INSTALL_DEFAULT_COMPONENT_NAME development)
install(TARGETS hora EXPORT hora-targets LIBRARY COMPONENT runtime NAMELINK_COMPONENT development
  INCLUDES DESTINATION ${CMAKE_INSTALL_INCLUDEDIR})
install(EXPORT hora-targets NAMESPACE hora:: DESTINATION ${package_folder})
install(DIRECTORY core/include/hora ops/mpi/include/hora DESTINATION ${CMAKE_INSTALL_INCLUDEDIR})

if(TARGET hora_torch)
  install(TARGETS hora_torch EXPORT hora-torch-targets COMPONENT torch
    INCLUDES DESTINATION ${CMAKE_INSTALL_INCLUDEDIR})
  install(EXPORT hora-torch-targets NAMESPACE hora:: DESTINATION ${package_folder} COMPONENT torch)
  install(DIRECTORY frameworks/torch/include/hora DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}
    COMPONENT torch)
  install(FILES cmake/FindLibTorch.cmake DESTINATION ${package_folder} COMPONENT torch)
endif()

if(HORA_CUDA)
  list(APPEND package_files ${CMAKE_CURRENT_SOURCE_DIR}/cmake/FindNCCL.cmake)
endif()
include(HoraMpiImplementation)
hora_mpi_implementation(HORA_MPI_IMPLEMENTATION)
configure_package_config_file(cmake/hora-config.cmake.in hora-config.cmake
  INSTALL_DESTINATION ${package_folder} NO_SET_AND_CHECK_MACRO)
# Before 1.0 a minor version may change the interface.
write_basic_package_version_file(hora-config-version.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${package_files} DESTINATION ${package_folder})
include(HoraPkgConfig)

file(GLOB_RECURSE documents RELATIVE ${CMAKE_CURRENT_SOURCE_DIR}
  bench/*.md core/*.md docs/*.md examples/*.md frameworks/*.md ops/*.md tests/*.md
  examples/average/*.cpp examples/pictures/*.svg examples/recipes/*)
foreach(document IN LISTS documents ITEMS README.md NEWS.md)
  cmake_path(GET document PARENT_PATH folder)
  install(FILES ${document} DESTINATION ${CMAKE_INSTALL_DOCDIR}/${folder})
endforeach()
