# cmake --build FOLDER --target docs: README.md, docs/, the recipes and the public headers as HTML in
# FOLDER/docs/html, where doxygen is installed. What Doxygen does not understand is an error.
find_package(Doxygen 1.9 QUIET)
if(NOT DOXYGEN_FOUND)
  return()
endif()
set(DOXYGEN_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/docs)
set(DOXYGEN_STRIP_FROM_PATH ${PROJECT_SOURCE_DIR})
set(DOXYGEN_STRIP_FROM_INC_PATH ${PROJECT_SOURCE_DIR}/core/include
  ${PROJECT_SOURCE_DIR}/ops/mpi/include
  ${PROJECT_SOURCE_DIR}/frameworks/torch/include)
# The first sentence is the summary.
set(DOXYGEN_JAVADOC_AUTOBRIEF YES)
set(DOXYGEN_MACRO_EXPANSION YES)
set(DOXYGEN_EXCLUDE_SYMBOLS *::detail *::detail::*)
set(DOXYGEN_USE_MDFILE_AS_MAINPAGE ${PROJECT_SOURCE_DIR}/README.md)
set(DOXYGEN_FILTER_PATTERNS *.md=${PROJECT_SOURCE_DIR}/cmake/docs_filter.sed)
set(DOXYGEN_IMAGE_PATH ${PROJECT_SOURCE_DIR}/bench/results/run ${PROJECT_SOURCE_DIR}/examples)
set(DOXYGEN_SOURCE_BROWSER YES)
set(DOXYGEN_EXTRACT_ALL YES)
set(DOXYGEN_HAVE_DOT NO)
set(DOXYGEN_QUIET YES)
set(DOXYGEN_WARN_IF_UNDOCUMENTED NO)
set(DOXYGEN_WARN_AS_ERROR FAIL_ON_WARNINGS)
doxygen_add_docs(docs README.md NEWS.md bench/README.md bench/scale/README.md bench/results/run/report.md
  core/README.md core/launch/README.md docs examples/README.md examples/recipes frameworks/README.md
  ops/README.md ops/nccl/README.md tests/README.md
  core/include ops/mpi/include frameworks/torch/include
  WORKING_DIRECTORY ${PROJECT_SOURCE_DIR}
  COMMENT "Documents and public headers as HTML")
