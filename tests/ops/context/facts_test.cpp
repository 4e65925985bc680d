// What a program can ask about the job and about the build.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <hora/hora.h>
#include <mpi.h>

#include "tests/support/environment_variable.h"
#include "tests/support/expect_error.h"

namespace hora::internal {
namespace {

TEST(Facts, AJobIsHomogeneousWhereNodesHaveAsManyRanks) {
  const Context world = init();
  const int on_a_node = world.settings().ranks_per_node;
  EXPECT_EQ(world.is_homogeneous(),
            on_a_node == 0 || world.size() % on_a_node == 0 || world.size() < on_a_node);
}

TEST(Facts, HoraIsInitializedFromInitToShutdown) {
  EXPECT_FALSE(is_initialized());
  Context world = init();
  EXPECT_TRUE(is_initialized());
  world.shutdown();
  EXPECT_FALSE(is_initialized());
  EXPECT_THROW((void)init({.process_sets = {{-1}}}), Error);
  EXPECT_FALSE(is_initialized());
}

TEST(Facts, MpiThreadsAreSupportedWhereMpiSaysSo) {
  const Context world = init();
  int level = MPI_THREAD_SINGLE;
  ASSERT_EQ(MPI_Query_thread(&level), MPI_SUCCESS);
  EXPECT_EQ(world.mpi_threads_supported(), level == MPI_THREAD_MULTIPLE);
}

TEST(Facts, SettingsGivenToInitAreInForceLikeTheEnvironments) {
  Settings settings;
  settings.fusion_threshold = std::size_t{3} << 20;
  const test::EnvironmentVariable environment("HORA_CHUNK_SIZE", "2MiB");
  {
    const Context world = init({.settings = settings});
    EXPECT_EQ(world.settings().fusion_threshold, std::size_t{3} << 20);
    EXPECT_EQ(world.settings().chunk_size, std::size_t{2} << 20);
  }
  settings.chunk_size = std::size_t{4} << 20;
  test::expect_error(
      ErrorCode::invalid_argument,
      testing::AllOf(testing::HasSubstr("HORA_CHUNK_SIZE is 2MiB"), testing::HasSubstr("4MiB")),
      [&] { const Context world = init({.settings = settings}); });
  const Context world = init();
  EXPECT_EQ(world.settings().chunk_size, std::size_t{2} << 20);
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
}  // namespace hora::internal
