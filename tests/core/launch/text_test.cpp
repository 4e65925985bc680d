#include "core/launch/text.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <thread>

#include "tests/core/launch/options/parsed.h"

namespace hora::launch {
namespace {

using internal::test::TemporaryFolder;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

TEST(Text, IntegersAreWholeAndWithinBounds) {
  EXPECT_EQ(parse_integer("7", 0, 9), 7);
  EXPECT_EQ(parse_integer("0", 0, 9), 0);
  for (const char* wrong :
       {"", " 7", "7 ", "+7", "-1", "10", "7.0", "0x7", "seven", "99999999999999999999"}) {
    const auto number = parse_integer(wrong, 0, 9);
    ASSERT_FALSE(number) << wrong;
    EXPECT_EQ(number.error(), "expected a whole number from 0 to 9");
  }
}

TEST(Text, WordsAreSplitAsAShellDoes) {
  EXPECT_THAT(*split_words("--mca btl  self,tcp"), ElementsAre("--mca", "btl", "self,tcp"));
  EXPECT_THAT(*split_words("'a b' \"c d\" e\\ f g'h'\"i\""),
              ElementsAre("a b", "c d", "e f", "ghi"));
  EXPECT_THAT(*split_words("'' \"\""), ElementsAre("", ""));
  EXPECT_THAT(*split_words("\"a\\\"b\\\\c\\d\" 'e\\'"), ElementsAre("a\"b\\c\\d", "e\\"));
  EXPECT_THAT(*split_words(" "), IsEmpty());
  EXPECT_THAT(*split_words("$HOME `id` * ~ ; | && $(id)"),
              ElementsAre("$HOME", "`id`", "*", "~", ";", "|", "&&", "$(id)"));
  EXPECT_EQ(split_words("a 'b").error(), "the quote ' is not closed");
  EXPECT_EQ(split_words("\"a\\\"").error(), "the quote \" is not closed");
}

TEST(ReadInputFile, ReadsAllOfItUpToALimit) {
  const TemporaryFolder folder;
  const std::string text(10000, 'a');
  EXPECT_EQ(read_input_file(test::written(folder, "f", text)), text);
  EXPECT_EQ(read_input_file(test::written(folder, "empty", "")), "");
  const std::string path = test::written(folder, "f", std::string(11, 'a'));
  EXPECT_TRUE(read_input_file(path, 11));
  EXPECT_THAT(read_input_file(path, 10).error(), HasSubstr("larger than 10 bytes"));
  EXPECT_THAT(read_input_file("/dev/zero").error(), HasSubstr("larger than"));
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
