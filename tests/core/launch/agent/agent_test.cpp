#include "core/launch/agent/agent.h"

#include <fmt/ranges.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "core/launch/control/system.h"
#include "tests/core/launch/texts.h"

namespace hora::launch {
namespace {

using testing::AllOf;
using testing::HasSubstr;

TEST(KillDescendants, EndsThoseThatAreStoppedAndTheirChildren) {
  ASSERT_EQ(::prctl(PR_SET_CHILD_SUBREAPER, 1), 0);
  Pipe pipe = make_pipe();
  // The pipe ends when both processes that hold it have ended.
  const auto child = start_child(
      {.arguments = {"sh", "-c", "sleep 100 & kill -STOP $$"}, .output = pipe.write.get()});
  ASSERT_TRUE(child);
  EXPECT_THAT(descendants_of(::getpid()),
              testing::Contains(testing::Field(&ProcessStat::pid, *child)));
  pipe.write.reset();
  kill_descendants(std::chrono::seconds(20));
  char byte = 0;
  EXPECT_EQ(::read(pipe.read.get(), &byte, 1), 0);
  EXPECT_THAT(descendants_of(::getpid()), testing::IsEmpty());
  ::prctl(PR_SET_CHILD_SUBREAPER, 0);
}

Prepare request_for(const std::string& program, const std::string& folder = "/") {
  Prepare request;
  request.folder = folder;
  request.program = program;
  request.path = "/usr/local/bin:/usr/bin:/bin";
  return request;
}

TEST(Prepare, FindsProgramsAndTheFolderOrSaysWhyNot) {
  std::string text;
  for (const Prepare& request :
       {request_for("sh"), request_for("/bin/sh"), request_for("bin/sh"),
        request_for("/none/train"), request_for("./etc/passwd"), request_for("/etc"),
        request_for("no_such_program"), request_for("sh", "/there/is/none"),
        request_for("sh", "/etc/passwd")}) {
    text += fmt::format("{}: {}\n", request.program, fmt::join(prepare(request).problems, "\n"));
  }
  test::expect_texts("programs and folders that an agent misses", text);
}

TEST(Prepare, SaysWhatTheHostHas) {
  Prepare request = request_for("sh");
  test::set(request, &Prepare::ranks, 2U, &Prepare::world_size, 4U, &Prepare::binding, "none",
            &Prepare::threads, "5");
  const Prepared prepared = prepare(request);
  EXPECT_THAT(prepared.cores, AllOf(HasSubstr("2 ranks on "), HasSubstr(", not bound"),
                                    HasSubstr(", OMP_NUM_THREADS=5")));
  EXPECT_GT(prepared.memory, 0U);
  EXPECT_GT(prepared.shared_memory, 0U);
  EXPECT_GT(prepared.clock_ns, 0);
  request.ranks = 0;
  EXPECT_EQ(prepare(request).cores, "");
}

TEST(SessionFolders, AreRemovedWithAllThatIsInThem) {
  std::vector<std::string> paths;
  {
    const SessionFolders folders;
    paths = folders.paths();
    ASSERT_EQ(paths.size(), 2U);
    for (const std::string& path : paths) {
      EXPECT_EQ(std::filesystem::status(path).permissions(), std::filesystem::perms::owner_all);
      std::filesystem::create_directory(path + "/below");
      std::ofstream(path + "/below/file") << "x";
    }
  }
  for (const std::string& path : paths) EXPECT_FALSE(std::filesystem::exists(path)) << path;
  const internal::test::TemporaryFolder other;
  remove_session_folders({other.path().string(), "horarun-relative", ""});
  EXPECT_TRUE(std::filesystem::exists(other.path()));
}

}  // namespace
}  // namespace hora::launch
