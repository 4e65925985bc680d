#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "core/launch/program/check_build.h"

namespace hora::launch {
namespace {

using testing::AllOf;
using testing::HasSubstr;

TEST(LibraryQuery, FindsTheAnswerAmongMpisOwnWords) {
  EXPECT_EQ(answer_of("a warning\n\nhorarun-answer: 2.19.3\nmore\n"), "2.19.3");
  EXPECT_EQ(answer_of("horarun-failure: it is not there\n").error(), "it is not there");
  EXPECT_THAT(answer_of("Segmentation fault").error(), HasSubstr("\"Segmentation fault\""));
  EXPECT_THAT(answer_of("x horarun-answer: 1\n").error(), HasSubstr("no answer came"));
}

/// The real libraries are asked by horarun itself.
TEST(LibraryQuery, OfThisBuildsMpiSaysItsThreadLevel) {
  const auto answer = query_library(HORARUN, Library::mpi, this_build().mpi_files);
  ASSERT_TRUE(answer) << answer.error();
  EXPECT_THAT(*answer, HasSubstr(", MPI_THREAD_"));
}

TEST(LibraryQuery, OfAnotherLibrarySaysWhatIsMissing) {
  EXPECT_THAT(query_library(HORARUN, Library::mpi, {"/no/libmpi.so", "libnone.so.7"}).error(),
              AllOf(HasSubstr("/no/libmpi.so"), HasSubstr("libnone.so.7")));
  EXPECT_THAT(query_library(HORARUN, Library::mpi, {"libm.so.6"}).error(),
              HasSubstr("it has no function MPI_"));
  EXPECT_THAT(query_library(HORARUN, Library::nccl, {"/no/libnccl.so", "libm.so.6"}).error(),
              HasSubstr("it has no function ncclGetVersion"));
}

}  // namespace
}  // namespace hora::launch
