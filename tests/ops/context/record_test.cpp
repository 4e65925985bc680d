// The flight record of a rank in a real job, as its guard reads it.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <hora/hora.h>
#include <mpi.h>
#include <signal.h>
#include <unistd.h>

#include <array>
#include <fstream>
#include <vector>

#include "core/flight/record_reader.h"
#include "tests/support/environment_variable.h"
#include "tests/support/expect_error.h"
#include "tests/support/temporary_folder.h"

namespace hora::internal {
namespace {

using test::EnvironmentVariable;
using testing::HasSubstr;
using testing::IsEmpty;

volatile sig_atomic_t handled = 0;
void count(int) {
  handled = handled + 1;
}

bool is_handled_by_count(int signal) {
  struct sigaction action {};
  ::sigaction(signal, nullptr, &action);
  return action.sa_handler == count;
}

/// Memory of a guard, which this process is itself.
class Guarded {
 public:
  FlightRecord record() const { return read_record(memory_.layout(), record_now()).value(); }
  const RecordedCollective* find(const FlightRecord& record, const std::string& name) const {
    for (const RecordedCollective& one : record.collectives) {
      if (one.name == name) return &one;
    }
    return nullptr;
  }

 private:
  RecordMemory memory_ = RecordMemory::create().value();
  EnvironmentVariable variable_{kRecordVariable, memory_.path()};
};

TEST(FlightRecord, TellsWhatTheRankIsAndDoes) {
  const Guarded guarded;
  Context world = init();
  note_phase(world, "epoch 1");
  std::vector<float> values(100, 1.0F);
  allreduce(world, view(values), {.name = "x"});
  FlightRecord record = guarded.record();
  EXPECT_EQ(record.state, RecordState::initialised);
  EXPECT_EQ(record.rank, world.rank());
  EXPECT_EQ(record.size, world.size());
  EXPECT_EQ(record.node, world.cross_rank());
  EXPECT_EQ(record.local_rank, world.local_rank());
  EXPECT_EQ(record.hora_version, build_info().version);
  EXPECT_THAT(record.host, testing::Not(IsEmpty()));
  EXPECT_EQ(record.pid, ::getpid());
  EXPECT_EQ(record.phase, "epoch 1");
  const RecordedCollective* const x = guarded.find(record, "x");
  ASSERT_NE(x, nullptr);
  EXPECT_EQ(x->bytes, 400u);
  EXPECT_EQ(x->outcome, RecordOutcome::done);
  EXPECT_EQ(x->peers, static_cast<std::uint32_t>(world.size()));
  world.shutdown();
  record = guarded.record();
  EXPECT_EQ(record.state, RecordState::shut_down);
  EXPECT_FALSE(record.cause);
}

TEST(FlightRecord, HasTheReasonWhyHoraDidNotStart) {
  const Guarded guarded;
  {
    const EnvironmentVariable setting("HORA_SPIN", "fast");
    test::expect_error(ErrorCode::invalid_setting, [] { const Context world = init(); });
  }
  const FlightRecord record = guarded.record();
  EXPECT_EQ(record.state, RecordState::failed);
  ASSERT_TRUE(record.cause);
  EXPECT_THAT(record.cause->text, HasSubstr("HORA_SPIN=\"fast\""));
}

TEST(FlightRecord, OfAnotherInitIsLeftAloneByOneThatIsRefused) {
  const Guarded guarded;
  const Context world = init();
  test::expect_error(ErrorCode::invalid_use, [] { const Context second = init(); });
  EXPECT_EQ(guarded.record().state, RecordState::initialised);
}

TEST(FlightRecord, DisagreementsThatAProgramCatchesAreNoFailures) {
  const Guarded guarded;
  const Context world = init();
  if (world.size() == 1) GTEST_SKIP() << "one rank agrees with itself";
  std::vector<float> values(static_cast<std::size_t>(1 + world.rank()), 1.0F);
  test::expect_error(ErrorCode::mismatch, [&] { allreduce(world, view(values), {.name = "odd"}); });
  const FlightRecord record = guarded.record();
  EXPECT_EQ(record.state, RecordState::initialised);
  ASSERT_NE(guarded.find(record, "odd"), nullptr);
  EXPECT_EQ(guarded.find(record, "odd")->outcome, RecordOutcome::failed);
}

TEST(FlightRecord, SignalsReachTheProgramsOwnHandlers) {
  const Guarded guarded;
  struct sigaction before {};
  struct sigaction action {};
  action.sa_handler = count;
  ::sigaction(SIGUSR1, &action, &before);
  {
    const Context world = init();
    EXPECT_FALSE(is_handled_by_count(SIGUSR1));
    ::raise(SIGUSR1);
    EXPECT_EQ(handled, 1);
  }
  EXPECT_TRUE(is_handled_by_count(SIGUSR1));
  ::sigaction(SIGUSR1, &before, nullptr);
}

TEST(RecordDirectory, ThatOneRankCannotWriteToIsAnErrorOnAll) {
  const test::TemporaryFolder folder;
  std::ofstream(folder.file("file")) << "";
  int rank = 0;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  std::array<char, 1024> path{};
  folder.file("file").copy(path.data(), path.size() - 1);
  MPI_Bcast(path.data(), static_cast<int>(path.size()), MPI_CHAR, 0, MPI_COMM_WORLD);
  const EnvironmentVariable setting("HORA_RECORD_DIRECTORY", path.data());
  test::expect_error(ErrorCode::invalid_setting,
                     testing::AllOf(HasSubstr("HORA_RECORD_DIRECTORY"), HasSubstr("is no folder")),
                     [] { const Context world = init(); });
  MPI_Barrier(MPI_COMM_WORLD);
}

}  // namespace
}  // namespace hora::internal
