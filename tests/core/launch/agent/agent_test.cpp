#include "core/launch/agent/agent.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <map>

#include "core/launch/control/system.h"
#include "tests/support/temporary_folder.h"

namespace hora::launch {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::Field;
using testing::HasSubstr;
using testing::IsEmpty;

TEST(KillDescendants, EndsThoseThatAreStoppedAndTheirChildren) {
  ASSERT_EQ(::prctl(PR_SET_CHILD_SUBREAPER, 1), 0);
  Pipe pipe = make_pipe();
  // The pipe ends when both processes that hold it have ended.
  const auto child = start_child(
      {.arguments = {"sh", "-c", "sleep 100 & kill -STOP $$"}, .output = pipe.write.get()});
  ASSERT_TRUE(child);
  EXPECT_THAT(descendants_of(::getpid()), testing::Contains(Field(&ProcessStat::pid, *child)));
  pipe.write.reset();
  kill_descendants(std::chrono::seconds(20));
  char byte = 0;
  EXPECT_EQ(::read(pipe.read.get(), &byte, 1), 0);
  EXPECT_THAT(descendants_of(::getpid()), testing::IsEmpty());
  ::prctl(PR_SET_CHILD_SUBREAPER, 0);
}

Prepare request_for(const std::string& program) {
  Prepare request;
  request.folder = "/";
  request.program = program;
  request.path = "/usr/local/bin:/usr/bin:/bin";
  return request;
}

TEST(Prepare, FindsProgramsAndTheFolderOrSaysWhyNot) {
  for (const char* program : {"sh", "/bin/sh", "bin/sh"}) {
    EXPECT_THAT(prepare(request_for(program)).problems, IsEmpty());
  }
  for (const auto& [program, texts] : std::map<std::string, std::vector<std::string>>{
           {"/none/train",
            {"the program \"/none/train\" cannot be run: No such file or directory; copy it "
             "there"}},
           {"./etc/passwd", {"\"/etc/passwd\"", "(chmod +x)"}},
           {"/etc", {"it is a folder"}},
           {"no_such_program", {"/usr/local/bin:/usr/bin", "\"./no_such_program\""}}}) {
    const auto problems = prepare(request_for(program)).problems;
    ASSERT_EQ(problems.size(), 1U) << program;
    for (const std::string& text : texts) EXPECT_THAT(problems[0], HasSubstr(text));
    EXPECT_EQ(problems[0].find("copy it there") != std::string::npos, program == "/none/train");
  }
  Prepare request = request_for("sh");
  request.folder = "/there/is/none";
  EXPECT_THAT(prepare(request).problems,
              ElementsAre(HasSubstr("the folder /there/is/none: No such file")));
  request.folder = "/etc/passwd";
  EXPECT_THAT(prepare(request).problems, ElementsAre(HasSubstr("it is no folder")));
}

TEST(Prepare, SaysWhatTheHostHas) {
  Prepare request = request_for("sh");
  request.ranks = 2;
  request.world_size = 4;
  request.binding = "none";
  request.threads = "5";
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
