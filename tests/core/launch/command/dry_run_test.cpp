#include "core/launch/command/dry_run.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "core/launch/command/captured_output.h"
#include "tests/support/seed.h"

namespace hora::launch {
namespace {

TEST(DryRun, QuotesWhatAShellWouldRead) {
  EXPECT_EQ(as_shell_word("/usr/bin/a-b_c:1,2"), "/usr/bin/a-b_c:1,2");
  EXPECT_EQ(as_shell_word(""), "''");
  EXPECT_EQ(as_shell_word("a b"), "'a b'");
  EXPECT_EQ(as_shell_word("it's"), "'it'\\''s'");
  EXPECT_EQ(as_shell_word("^slurm"), "'^slurm'");
}

TEST(DryRun, PutsVariablesFirst) {
  EXPECT_EQ(as_shell_line({{"mpirun", "-np", "2", "a b"}, {{"A", "1"}, {"B", "x y"}}}),
            "A=1 B='x y' mpirun -np 2 'a b'");
  EXPECT_EQ(as_shell_line({{"A=1", "b=2"}, {}}), "'A=1' b=2");
}

TEST(DryRun, IsReadBackByAShell) {
  auto random = internal::test::generator();
  const auto draw = [&](int most) { return std::uniform_int_distribution<int>(0, most)(random); };
  for (int round = 0; round < 50; ++round) {
    Command command{{"printf", "[%s]"}, {}};
    std::string expected;
    for (int words = draw(4) + 1; words > 0; --words) {
      std::string word;
      for (int i = draw(8); i > 0; --i) word += static_cast<char>(1 + draw(126));
      command.arguments.push_back(word);
      expected += "[" + word + "]";
    }
    const auto output =
        captured_output({"/bin/sh", "-c", as_shell_line(command)}, std::chrono::seconds(20));
    ASSERT_TRUE(output) << output.error();
    EXPECT_EQ(output->text, expected);
  }
}

}  // namespace
}  // namespace hora::launch
