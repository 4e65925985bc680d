#include "core/launch/agent/preparation.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "core/launch/agent/session_folders.h"
#include "tests/support/temporary_folder.h"

namespace hora::launch {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

Prepare request_for(const std::string& program) {
  Prepare request;
  request.folder = "/";
  request.program = program;
  request.path = "/usr/local/bin:/usr/bin:/bin";
  return request;
}

TEST(Prepare, FindsPrograms) {
  EXPECT_THAT(prepare(request_for("sh")).problems, IsEmpty());
  EXPECT_THAT(prepare(request_for("/bin/sh")).problems, IsEmpty());
  EXPECT_THAT(prepare(request_for("bin/sh")).problems, IsEmpty());
  EXPECT_GT(prepare(request_for("sh")).cores, 0U);
  EXPECT_GT(prepare(request_for("sh")).memory, 0U);
}

TEST(Prepare, SaysWhyAProgramCannotBeStarted) {
  EXPECT_THAT(prepare(request_for("/none/train")).problems,
              ElementsAre(HasSubstr("the program /none/train: No such file or directory; copy")));
  EXPECT_THAT(prepare(request_for("./etc/passwd")).problems,
              ElementsAre(HasSubstr("it may not be executed (chmod +x)")));
  EXPECT_THAT(prepare(request_for("/etc")).problems, ElementsAre(HasSubstr("it is a folder")));
  EXPECT_THAT(prepare(request_for("no_such_program")).problems,
              ElementsAre(HasSubstr("write ./no_such_program for one in the present folder")));
}

TEST(Prepare, SaysThatTheFolderIsMissing) {
  Prepare request = request_for("sh");
  request.folder = "/there/is/none";
  EXPECT_THAT(prepare(request).problems, ElementsAre(HasSubstr("the folder /there/is/none")));
}

TEST(Prepare, ComparesSharedMemory) {
  Prepare request = request_for("sh");
  request.shared_memory = std::uint64_t{1} << 60;
  EXPECT_THAT(prepare(request).problems, ElementsAre(HasSubstr("/dev/shm has")));
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
}

TEST(SessionFolders, OtherFoldersAreLeftAlone) {
  const internal::test::TemporaryFolder folder;
  remove_session_folders({folder.path().string(), "horarun-relative", ""});
  EXPECT_TRUE(std::filesystem::exists(folder.path()));
}

}  // namespace
}  // namespace hora::launch
