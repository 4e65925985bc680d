# cmake --build FOLDER --target docs: the public headers as HTML in FOLDER/docs/html, where doxygen is
# installed. What Doxygen does not understand is an error.
find_package(Doxygen 1.9 QUIET)
if(NOT DOXYGEN_FOUND)
  return()
endif()
set(DOXYGEN_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/docs)
set(DOXYGEN_STRIP_FROM_PATH ${PROJECT_SOURCE_DIR}/core/include
  ${PROJECT_SOURCE_DIR}/ops/mpi/include
  ${PROJECT_SOURCE_DIR}/frameworks/torch/include)
set(DOXYGEN_STRIP_FROM_INC_PATH ${DOXYGEN_STRIP_FROM_PATH})
# The first sentence is the summary.
set(DOXYGEN_JAVADOC_AUTOBRIEF YES)
set(DOXYGEN_MACRO_EXPANSION YES)
set(DOXYGEN_EXCLUDE_SYMBOLS *::detail *::detail::*)
set(DOXYGEN_HAVE_DOT NO)
set(DOXYGEN_QUIET YES)
set(DOXYGEN_WARN_IF_UNDOCUMENTED NO)
set(DOXYGEN_WARN_AS_ERROR FAIL_ON_WARNINGS)
doxygen_add_docs(docs core/include ops/mpi/include frameworks/torch/include
  WORKING_DIRECTORY ${PROJECT_SOURCE_DIR}
  COMMENT "Public headers as HTML")
