// What a program can ask about the job and about the build.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <hora/hora.h>
#include <mpi.h>

namespace hora {
namespace {

TEST(Facts, AJobIsHomogeneousWhereNodesHaveAsManyRanks) {
  const Context world = init();
  const int on_a_node = world.settings().ranks_per_node;
  EXPECT_EQ(world.is_homogeneous(),
            on_a_node == 0 || world.size() % on_a_node == 0 || world.size() < on_a_node);
}

TEST(Facts, MpiThreadsAreSupportedWhereMpiSaysSo) {
  const Context world = init();
  int level = MPI_THREAD_SINGLE;
  ASSERT_EQ(MPI_Query_thread(&level), MPI_SUCCESS);
  EXPECT_EQ(world.mpi_threads_supported(), level == MPI_THREAD_MULTIPLE);
}

TEST(Facts, TheBuildSaysWhatIsInIt) {
  const BuildInfo info = build_info();
  EXPECT_THAT(info.version, testing::MatchesRegex("[0-9]+\\.[0-9]+\\.[0-9]+"));
  EXPECT_THAT(info.mpi,
              testing::AnyOf(testing::StartsWith("Open MPI"), testing::StartsWith("MPICH")));
  EXPECT_THAT(info.mpi, testing::Not(testing::HasSubstr("\n")));
#ifdef HORA_WITH_CUDA
  EXPECT_THAT(info.cuda, testing::MatchesRegex("[0-9]+\\.[0-9]+"));
  EXPECT_THAT(info.nccl, testing::MatchesRegex("[0-9]+\\.[0-9]+\\.[0-9]+"));
#else
  EXPECT_EQ(info.cuda, "");
  EXPECT_EQ(info.nccl, "");
#endif
}

}  // namespace
}  // namespace hora
