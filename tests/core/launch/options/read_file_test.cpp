#include "core/launch/options/read_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <thread>

#include "tests/core/launch/options/parsed.h"

namespace hora::launch {
namespace {

using internal::test::TemporaryFolder;
using testing::HasSubstr;

TEST(ReadInputFile, ReadsAllOfIt) {
  const TemporaryFolder folder;
  const std::string text(10000, 'a');
  EXPECT_EQ(read_input_file(test::written(folder, "f", text)), text);
  EXPECT_EQ(read_input_file(test::written(folder, "empty", "")), "");
}

TEST(ReadInputFile, ReadsNoMoreThanAllowed) {
  const TemporaryFolder folder;
  const std::string path = test::written(folder, "f", std::string(11, 'a'));
  EXPECT_TRUE(read_input_file(path, 11));
  EXPECT_THAT(read_input_file(path, 10).error(), HasSubstr("larger than 10 bytes"));
  EXPECT_THAT(read_input_file("/dev/zero").error(), HasSubstr("larger than"));
}

TEST(ReadInputFile, SaysWhatIsWrong) {
  EXPECT_THAT(read_input_file("/nowhere").error(), HasSubstr("No such file"));
  EXPECT_THAT(read_input_file("/").error(), HasSubstr("cannot be read"));
}

TEST(ReadInputFile, WaitsForAPipesWriterNotForAFifoWithoutOne) {
  const TemporaryFolder folder;
  const std::string path = folder.file("fifo");
  ASSERT_EQ(mkfifo(path.c_str(), 0600), 0);
  EXPECT_EQ(read_input_file(path), "");

  int ends[2] = {-1, -1};
  ASSERT_EQ(pipe(ends), 0);
  std::jthread writer([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(30));
    EXPECT_EQ(write(ends[1], "late", 4), 4);
    close(ends[1]);
  });
  EXPECT_EQ(read_input_file("/dev/fd/" + std::to_string(ends[0])), "late");
  writer.join();
  close(ends[0]);
}

}  // namespace
}  // namespace hora::launch
