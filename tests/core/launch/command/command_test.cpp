#include "core/launch/command/command.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <map>

#include "core/launch/control/system.h"
#include "tests/support/read_file.h"
#include "tests/support/seed.h"
#include "tests/support/temporary_folder.h"

namespace hora::launch {
namespace {

using testing::HasSubstr;

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

/// Texts of Open MPI 4 without and with a prefix, of Open MPI 5 and of hydra.
TEST(ShellCommand, BecomesTheProgramBehindSettings) {
  for (const auto& [text, expected] : std::map<std::string, std::string>{
           {R"x( printf "<%s>" -mca "vm,[3:127].0.0.2@0(2)" "1.0;tcp://192.0.2.2:58009")x",
            "<-mca><vm,[3:127].0.0.2@0(2)><1.0;tcp://192.0.2.2:58009>"},
           {R"(      A=/opt:$A ; export A ; B=/lib:${A:-} ; export B ;   printf "<%s>" $A $B)",
            "</opt:></lib:/opt:>"},
           {R"(A=/x;export A;/bin/sh -c 'printf $A' "--prtemca")", "/x"},
           {R"("/usr/bin/printf" "<%s>" vm:1 --usize -2)", "<vm:1><--usize><-2>"},
           {"A=$$;export A;/bin/sh -c 'test $A = $$ && printf same'", "same"}}) {
    const auto output = captured_output(shell_command(text), std::chrono::seconds(20));
    ASSERT_TRUE(output) << output.error();
    EXPECT_EQ(output->text, expected);
  }
}

TEST(EncodedWords, CanBeReadByPeople) {
  EXPECT_EQ(encode_words({"./train", "--epochs", "3"}), "./train,--epochs,3");
  EXPECT_EQ(encode_words({"--odd", "a b", "", ":", "x,y", "%", "\xff"}),
            "%2D-odd,a%20b,,%3A,x%2Cy,%25,%FF");
}

TEST(EncodedWords, SurviveTheRoundTrip) {
  auto random = internal::test::generator();
  const auto draw = [&](int most) { return std::uniform_int_distribution<int>(0, most)(random); };
  for (int round = 0; round < 1000; ++round) {
    std::vector<std::string> words(static_cast<std::size_t>(1 + draw(5)));
    for (std::string& word : words) {
      for (int i = draw(6); i > 0; --i)
        word += static_cast<char>(draw(1) ? draw(255) : '-' + draw(3));
    }
    const std::string text = encode_words(words);
    EXPECT_FALSE(text.starts_with('-'));
    EXPECT_TRUE(
        std::ranges::none_of(text, [](char c) { return c <= ' ' || c == ':' || c == '\''; }));
    const auto decoded = decode_words(text);
    ASSERT_TRUE(decoded) << decoded.error();
    EXPECT_EQ(*decoded, words);
  }
}

TEST(EncodedWords, RefuseOtherTexts) {
  for (const char* const text : {"a b", "%", "%4", "%4g", "a:", "%aa"}) {
    const auto words = decode_words(text);
    ASSERT_FALSE(words) << text;
    EXPECT_THAT(words.error(), HasSubstr("not encoded: byte "));
  }
}

class InspectProgram : public testing::Test {
 protected:
  std::string file(const std::string& name, const std::string& text, bool executable = true) {
    std::ofstream(folder_.file(name), std::ios::binary) << text;
    if (executable) {
      std::filesystem::permissions(folder_.file(name), std::filesystem::perms::owner_all);
    }
    return folder_.file(name);
  }
  static std::string refusal(const std::string& program) {
    const auto inspected = inspect_program(program, "/bin");
    EXPECT_FALSE(inspected) << program;
    return inspected ? "" : inspected.error();
  }
  internal::test::TemporaryFolder folder_;
};

TEST(ProgramFrom, IsAPathFromTheFolder) {
  EXPECT_EQ(program_from("/home/me", "./train"), "/home/me/train");
  EXPECT_EQ(program_from("/home/me", "bin/train"), "/home/me/bin/train");
  EXPECT_EQ(program_from("/home/me", "/opt/train"), "/opt/train");
  EXPECT_EQ(program_from("/home/me", "python3"), "python3");
}

TEST_F(InspectProgram, FindsProgramsAndScripts) {
  EXPECT_EQ(inspect_program("/proc/self/exe", ""), "/proc/self/exe");
  const std::string path = file("train", "#!/usr/bin/python3\n");
  EXPECT_EQ(inspect_program("train", "/bin:" + folder_.path().string()), path);
}

TEST_F(InspectProgram, SaysWhyItCannotRun) {
  EXPECT_THAT(refusal("/no/such"), HasSubstr("\"/no/such\" cannot be run: No such file"));
  EXPECT_THAT(refusal("nosuch"),
              testing::AllOf(HasSubstr("PATH (/bin)"), HasSubstr("write \"./nosuch\"")));
  EXPECT_THAT(refusal(folder_.path()), HasSubstr("it is a folder"));
  EXPECT_THAT(refusal(file("plain", "#!/bin/sh\n", false)), HasSubstr("chmod +x"));
  EXPECT_THAT(refusal("/dev/null"), HasSubstr("no regular file"));
}

}  // namespace
}  // namespace hora::launch
