#include "core/launch/options/help.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <cstdio>
#include <memory>

#include "core/launch/options/option_table.h"
#include "core/launch/options/text.h"
#include "tests/core/launch/options/parsed.h"

namespace hora::launch {
namespace {

using internal::test::TemporaryFolder;
using testing::Contains;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::IsSupersetOf;
using testing::Not;

/// What a command prints on both streams.
std::string printed_by(const std::string& command) {
  const std::unique_ptr<std::FILE, int (*)(std::FILE*)> pipe(
      popen((command + " 2>&1").c_str(), "r"), pclose);
  std::string text;
  std::array<char, 4096> buffer{};
  while (const std::size_t bytes = std::fread(buffer.data(), 1, buffer.size(), pipe.get())) {
    text.append(buffer.data(), bytes);
  }
  return text;
}

bool is_installed(const std::string& program) {
  return !printed_by("command -v " + program).empty();
}

TEST(Help, NamesEachFlag) {
  const std::string text = help_text();
  for (const OptionRow& row : option_table()) {
    EXPECT_THAT(text, HasSubstr(with_dashes(row.name)));
    if (row.group != OptionGroup::compatibility) {
      EXPECT_THAT(text, HasSubstr(shown_spellings(row)));
    }
  }
}

TEST(Help, SaysWhatIsOnOrOff) {
  EXPECT_THAT(help_text(), HasSubstr("\n  --report[=off|on], --no-report\n"));
  EXPECT_THAT(help_text(), HasSubstr("\n  --fusion-threshold BYTES\n"));
  EXPECT_THAT(man_page("0.1.0"), HasSubstr("[=off|on], \\fB\\-\\-no\\-report\\fR"));
}

TEST(Help, FitsIntoItsWidth) {
  const std::string text = help_text();
  for (const std::string_view line : split(text, '\n')) {
    EXPECT_LE(line.size(), kHelpWidth) << line;
    EXPECT_FALSE(line.ends_with(' ')) << line;
  }
}

TEST(Help, IsGrouped) {
  const std::string text = help_text();
  std::size_t place = 0;
  for (const GroupTitle& group : group_titles()) {
    const std::size_t next = text.find("\n" + std::string(group.title) + ":\n", place);
    ASSERT_NE(next, text.npos) << group.title;
    place = next;
  }
}

TEST(ManPage, NamesEachFlagAndIsRoffWithoutWarnings) {
  const TemporaryFolder folder;
  const std::string page = test::written(folder, "horarun.1", man_page("0.1.0"));
  if (is_installed("groff")) {
    EXPECT_THAT(printed_by("groff -man -ww -Tutf8 -z " + page), IsEmpty());
    const std::string text = printed_by("groff -man -Tascii -P-cbou -rLL=1000n " + page);
    for (const OptionRow& row : option_table()) {
      EXPECT_THAT(text, HasSubstr(with_dashes(row.name)));
    }
    EXPECT_THAT(text, HasSubstr("%r in the path"));
  }
  if (is_installed("man")) {
    EXPECT_THAT(printed_by("man --warnings -E UTF-8 -l -Tutf8 -Z " + page + " >/dev/null"),
                IsEmpty());
  }
  if (is_installed("mandoc")) {
    EXPECT_THAT(printed_by("mandoc -T lint -W warning " + page), IsEmpty());
  }
}

class Completion : public testing::Test {
 protected:
  /// What bash offers for the last of these words of a line.
  std::vector<std::string> offers(const std::string& words) {
    const std::string script = test::written(
        folder_, "ask.bash",
        "source '" + script_ + "'\ncompopt() { echo \"compopt $*\"; }\nCOMP_WORDS=(" + words +
            ")\nCOMP_CWORD=$((${#COMP_WORDS[@]} - 1))\n_horarun\nprintf '%s\\n' "
            "\"${COMPREPLY[@]}\"\n");
    const std::string text = printed_by("cd '" + folder_.path().string() + "' && bash " + script);
    std::vector<std::string> result;
    for (const std::string_view line : split(trimmed(text), '\n')) result.emplace_back(line);
    return result;
  }

  TemporaryFolder folder_;
  std::string script_ = test::written(folder_, "horarun.bash", bash_completion());
};

TEST_F(Completion, IsAScriptWithoutFaults) {
  EXPECT_THAT(printed_by("bash -n " + script_), IsEmpty());
  if (is_installed("shellcheck")) {
    EXPECT_THAT(printed_by("shellcheck -s bash " + script_), IsEmpty());
  }
}

TEST_F(Completion, OffersFlagsBeforeTheProgram) {
  EXPECT_THAT(offers("horarun --fusion-thr"),
              testing::UnorderedElementsAre("--fusion-threshold", "--fusion-threshold-mb"));
  EXPECT_THAT(offers("horarun -np 4 -H a:2 --verb"), testing::ElementsAre("--verbose"));
  EXPECT_THAT(offers("horarun --np = 4 --mca btl tcp --verb"), testing::ElementsAre("--verbose"));
  EXPECT_THAT(offers("horarun --no-prefix"), testing::ElementsAre("--no-prefix-output"));
  EXPECT_THAT(offers("horarun --no-rep"), testing::ElementsAre("--no-report"));
  for (const char* toggle : {"--report", "--report on", "--report = off", "--no-report"}) {
    EXPECT_THAT(offers("horarun " + std::string(toggle) + " --verb"),
                testing::ElementsAre("--verbose"))
        << toggle;
  }
  EXPECT_THAT(offers("horarun --min-n"), Not(Contains("--min-np"))) << "a flag that is refused";
}

TEST_F(Completion, OffersValuesAfterAFlag) {
  EXPECT_THAT(offers("horarun --binding ''"),
              testing::UnorderedElementsAre("auto", "none", "core", "numa"));
  EXPECT_THAT(offers("horarun --cross_algorithm = ''"),
              testing::IsSupersetOf({"automatic", "direct", "ring"}));
  EXPECT_THAT(offers("horarun -hostfile horarun.b"),
              testing::ElementsAre("compopt -o filenames", "horarun.bash"));
}

TEST_F(Completion, LeavesTheProgramsArgumentsAlone) {
  EXPECT_THAT(offers("horarun -np 4 ./train --verb"), testing::ElementsAre("compopt -o default"));
  EXPECT_THAT(offers("horarun --report ./train --verb"),
              testing::ElementsAre("compopt -o default"));
  EXPECT_THAT(offers("horarun -np 4 -- ./train --verb"),
              testing::ElementsAre("compopt -o default"));
  EXPECT_THAT(offers("horarun -np 4 bas"), Contains("bash"));
}

}  // namespace
}  // namespace hora::launch
