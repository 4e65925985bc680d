// HORA_TIMELINE, start_timeline and stop_timeline in a real job.
#include "tests/support/timeline.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <hora/hora.h>
#include <mpi.h>

#include <array>
#include <optional>

#include "tests/support/environment_variable.h"
#include "tests/support/expect_error.h"
#include "tests/support/temporary_folder.h"

namespace hora::internal {
namespace {

using test::EnvironmentVariable;
using test::Timeline;
using testing::HasSubstr;
using testing::SizeIs;

int mpi_rank() {
  int rank = 0;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  return rank;
}

/// Rank 0's, known to all; removed when all are done with it.
class SharedFolder {
 public:
  SharedFolder() {
    if (mpi_rank() == 0) folder_.emplace();
    std::array<char, 1024> path{};
    if (folder_) folder_->path().string().copy(path.data(), path.size() - 1);
    MPI_Bcast(path.data(), static_cast<int>(path.size()), MPI_CHAR, 0, MPI_COMM_WORLD);
    path_ = path.data();
  }
  ~SharedFolder() { MPI_Barrier(MPI_COMM_WORLD); }
  std::string file(const std::string& name) const { return path_ + "/" + name; }

 private:
  std::optional<test::TemporaryFolder> folder_;
  std::string path_;
};

void average(const Context& world, const std::string& name, int rounds) {
  std::vector<float> values(3000, 1.0F);
  for (int round = 0; round < rounds; ++round) {
    allreduce(world, view(values.data(), 3000), {.name = name});
  }
}

TEST(Timeline, TheSettingGivesOneFileARank) {
  const SharedFolder folder;
  const EnvironmentVariable setting("HORA_TIMELINE", folder.file("t.%r.json"));
  int size = 0;
  {
    const Context world = init();
    size = world.size();
    average(world, "x", 7);
  }
  MPI_Barrier(MPI_COMM_WORLD);
  // Each rank looks at all files.
  for (int rank = 0; rank < size; ++rank) {
    const Timeline timeline(folder.file("t." + std::to_string(rank) + ".json"));
    EXPECT_EQ(timeline.pid(), rank);
    const auto& facts = timeline.metadata("hora_timeline");
    EXPECT_EQ(facts.at("rank"), rank);
    EXPECT_EQ(facts.at("size"), size);
    EXPECT_THAT(timeline.metadata("process_name").at("name").get<std::string>(),
                HasSubstr("rank " + std::to_string(rank)));
    EXPECT_THAT(timeline.spans("x", "allreduce"), SizeIs(7));
    EXPECT_THAT(timeline.spans("x", "negotiate"), SizeIs(7));
  }
}

/// The ranks of a host share the steady clock: no run begins before every rank's submission.
TEST(Timeline, FilesOfAHostFitTogether) {
  const SharedFolder folder;
  const EnvironmentVariable setting("HORA_TIMELINE", folder.file("t.json"));
  int size = 0;
  {
    const Context world = init();
    size = world.size();
    average(world, "x", 5);
  }
  MPI_Barrier(MPI_COMM_WORLD);
  std::vector<double> last_submission(5, 0.0);
  std::vector<double> first_run(5, 1e300);
  for (int rank = 0; rank < size; ++rank) {
    const Timeline timeline(folder.file("t." + std::to_string(rank) + ".json"));
    const auto negotiations = timeline.spans("x", "negotiate");
    const auto runs = timeline.spans("x", "allreduce");
    ASSERT_THAT(negotiations, SizeIs(5));
    ASSERT_THAT(runs, SizeIs(5));
    for (std::size_t i = 0; i < 5; ++i) {
      last_submission[i] = std::max(last_submission[i], negotiations[i].begin);
      first_run[i] = std::min(first_run[i], runs[i].begin);
    }
  }
  for (std::size_t i = 0; i < 5; ++i) {
    EXPECT_LE(last_submission[i], first_run[i] + test::kTimelineRounding);
  }
}

TEST(Timeline, IsStartedAndStoppedOnOneRankAlone) {
  const SharedFolder folder;
  const Context world = init();
  const bool own = world.rank() == world.size() - 1;
  average(world, "before", 2);
  for (int round = 0; round < 3; ++round) {
    std::string file;
    if (own) file = start_timeline(world, folder.file("a.json"));
    average(world, "x", 4);
    if (!own) continue;
    stop_timeline(world);
    EXPECT_EQ(file, folder.file("a." + std::to_string(world.rank()) + ".json"));
    const Timeline timeline(file);
    EXPECT_THAT(timeline.spans("x", "allreduce"), SizeIs(4));
    EXPECT_THAT(timeline.spans("before"), SizeIs(0));
  }
  average(world, "after", 2);
  stop_timeline(world);  // nothing to stop
}

TEST(Timeline, MisuseIsAnErrorAndLeavesTheJobAsItWas) {
  const SharedFolder folder;
  Context world = init();
  const auto start = [&](const std::string& path) {
    return [&world, path] { (void)start_timeline(world, path); };
  };
  test::expect_error(ErrorCode::invalid_argument, start(""));
  test::expect_error(ErrorCode::invalid_argument, start(folder.file("%x")));
  test::expect_error(ErrorCode::invalid_argument, start(folder.file("no/such/folder")));
  (void)start_timeline(world, folder.file("%r"));
  test::expect_error(ErrorCode::invalid_use, start(folder.file("b")));
  average(world, "x", 2);
  world.shutdown();
  EXPECT_THAT(Timeline(folder.file(std::to_string(world.rank()))).spans("x", "allreduce"),
              SizeIs(2))
      << "shutdown() completes it";
  test::expect_error(ErrorCode::shut_down, start(folder.file("c")));
}

TEST(Timeline, ASettingThatCannotBeWrittenIsTheSameErrorOnAllRanks) {
  const SharedFolder folder;
  test::expect_error(
      ErrorCode::invalid_setting,
      testing::AllOf(HasSubstr("HORA_TIMELINE"), HasSubstr(folder.file("no/such/0.json"))), [&] {
        const EnvironmentVariable setting("HORA_TIMELINE", folder.file("no/such/%r.json"));
        const Context world = init();
      });
  const Context world = init();
  average(world, "x", 1);
}

}  // namespace
}  // namespace hora::internal
