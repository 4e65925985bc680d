#include "core/base/process.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <filesystem>
#include <fstream>
#include <string>
#include <thread>

#include "tests/support/temporary_folder.h"

namespace hora::internal {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

TEST(ProcessIdentity, HasTheHostsNameOfHorarun) {
  ::setenv(kHostVariable, "10.0.0.7", 1);
  EXPECT_EQ(identity_of_process(0).host, "10.0.0.7");
  ::unsetenv(kHostVariable);
}

TEST(ProcessStat, ReadsNamesOfAnyKind) {
  const auto stat = parse_process_stat("12 (a) R b (c)) T 7 12 12 0");
  ASSERT_TRUE(stat);
  EXPECT_EQ(stat->pid, 12);
  EXPECT_EQ(stat->parent, 7);
  EXPECT_EQ(stat->state, ProcessState::stopped);
  EXPECT_EQ(stat->name, "a) R b (c)");
}

TEST(ProcessStat, RefusesOtherTexts) {
  for (const char* text : {"", ")", "12", "12 (a", "12 (a)", "12 (a) ", "12 (a) R", "12 (a) R x",
                           "x (a) R 1", ") (", "12 (a) RR 1"}) {
    EXPECT_FALSE(parse_process_stat(text)) << text;
  }
}

bool becomes(pid_t pid, ProcessState wanted) {
  for (int i = 0; i < 2000; ++i) {
    if (process_state(pid) == wanted) return true;
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  return false;
}

TEST(ProcessState, OfAProcessThatIsStoppedGoesOnAndEnds) {
  EXPECT_EQ(process_state(::getpid()), ProcessState::running);
  const pid_t child = ::fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    for (;;) ::pause();
  }
  EXPECT_TRUE(becomes(child, ProcessState::sleeping));
  ::kill(child, SIGSTOP);
  EXPECT_TRUE(becomes(child, ProcessState::stopped));
  ::kill(child, SIGCONT);
  EXPECT_TRUE(becomes(child, ProcessState::sleeping));
  ::kill(child, SIGKILL);
  EXPECT_TRUE(becomes(child, ProcessState::gone)) << "before its parent waits for it";
  ::waitpid(child, nullptr, 0);
  EXPECT_EQ(process_state(child), ProcessState::gone);
}

/// A folder as the kernel shows RDMA devices.
class RdmaDevices : public testing::Test {
 protected:
  void add(const std::string& device, const std::string& port, const std::string& state) const {
    const std::filesystem::path of_port = folder_.file(device + "/ports/" + port);
    std::filesystem::create_directories(of_port);
    std::ofstream(of_port / "state") << state << '\n';
  }
  std::filesystem::path devices() const { return folder_.path(); }

  const test::TemporaryFolder folder_;
};

TEST_F(RdmaDevices, ActivePortsAreListedInOrder) {
  add("mlx5_1", "1", "4: ACTIVE");
  add("mlx5_0", "2", "4: ACTIVE");
  add("mlx5_0", "1", "1: DOWN");
  add("mlx5_2", "1", "2: INIT");
  std::filesystem::create_directories(folder_.file("without_ports"));
  EXPECT_THAT(active_rdma_ports(devices()), ElementsAre("mlx5_0 port 2", "mlx5_1 port 1"));
}

}  // namespace
}  // namespace hora::internal
