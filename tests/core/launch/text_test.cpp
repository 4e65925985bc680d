#include "core/launch/text.h"

#include <fmt/ranges.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <thread>

#include "tests/core/launch/texts.h"

namespace hora::launch {
namespace {

using internal::test::TemporaryFolder;

TEST(Text, IntegersAreWholeAndWithinBounds) {
  std::string text;
  for (const char* each : {"7", "0", "9", "", " 7", "7 ", "+7", "-1", "10", "7.0", "0x7", "seven",
                           "99999999999999999999"}) {
    const auto number = parse_integer(each, 0, 9);
    text += number ? fmt::format("{}\n", *number) : number.error() + "\n";
  }
  test::expect_texts("integers", text);
}

TEST(Text, WordsAreSplitAsAShellDoes) {
  std::string text;
  for (const char* each :
       {"--mca btl  self,tcp", "'a b' \"c d\" e\\ f g'h'\"i\"", "'' \"\"",
        "\"a\\\"b\\\\c\\d\" 'e\\'", " ", "$HOME `id` * ~ ; | && $(id)", "a 'b", "\"a\\\""}) {
    const auto words = split_words(each);
    text += words ? fmt::format("{} <{}>\n", words->size(), fmt::join(*words, "> <"))
                  : words.error() + "\n";
  }
  test::expect_texts("words of a shell", text);
}

TEST(ReadInputFile, ReadsAllOfItUpToALimit) {
  const TemporaryFolder folder;
  const std::string text(10000, 'a');
  EXPECT_EQ(read_input_file(test::written(folder, "f", text)), text);
  EXPECT_EQ(read_input_file(test::written(folder, "empty", "")), "");
  const std::string path = test::written(folder, "f", std::string(11, 'a'));
  EXPECT_TRUE(read_input_file(path, 11));
  std::string errors = test::error_of(read_input_file(path, 10)) + "\n";
  for (const char* each : {"/dev/zero", "/nowhere", "/"}) {
    errors += test::error_of(read_input_file(each)) + "\n";
  }
  test::expect_texts("files that cannot be read", errors);
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
