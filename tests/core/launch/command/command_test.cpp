#include "core/launch/command/command.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <spdlog/fmt/fmt.h>

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

using testing::ElementsAre;
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

TEST(Forwarded, AreSettingsAndSearchPaths) {
  for (const char* const name :
       {"HORA_LOG_LEVEL", "NCCL_DEBUG", "UCX_TLS", "OMP_NUM_THREADS", "MKL_NUM_THREADS", "PATH",
        "LD_LIBRARY_PATH", "PYTHONPATH", "CUDA_VISIBLE_DEVICES", "OMPI_MCA_btl", "PRTE_MCA_plm"}) {
    EXPECT_TRUE(is_forwarded(name)) << name;
  }
  for (const char* const name :
       {"HORARUN_TOKEN", "HORARUN_", "SSH_AUTH_SOCK", "SLURM_JOB_ID", "DISPLAY", "HOME", "TMPDIR",
        "OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK", "OMPI_MCA_orte_hnp_uri",
        "OMPI_MCA_ess_base_vpid", "LD_PRELOAD", "AWS_SECRET_ACCESS_KEY", "path", "PATHS", "HORA",
        ""}) {
    EXPECT_FALSE(is_forwarded(name)) << name;
  }
}

TEST(Forwarded, AreThoseOfTheListAndTheUsers) {
  const char* const environment[] = {
      "PATH=/bin", "HOME=/home", "HORA_SPIN=x=y", "MINE=a b",         "HORARUN_X=t", "C=",
      "noequals",  "=d",         "1A=2",          "BASH_FUNC_f%%=()", nullptr};
  EXPECT_THAT(forwarded_variables(environment, {}),
              ElementsAre(testing::Pair("HORA_SPIN", "x=y"), testing::Pair("PATH", "/bin")));
  EXPECT_THAT(forwarded_variables(environment, {"MINE", "HOME", "NONE", "MINE", "1A"}),
              ElementsAre(testing::Pair("HOME", "/home"), testing::Pair("HORA_SPIN", "x=y"),
                          testing::Pair("MINE", "a b"), testing::Pair("PATH", "/bin")));
}

using Environment = std::map<std::string, std::string, std::less<>>;

EnvironmentLookup lookup_in(const Environment& variables) {
  return [&](std::string_view name) -> std::optional<std::string> {
    const auto found = variables.find(name);
    return found == variables.end() ? std::nullopt : std::optional(found->second);
  };
}

tl::expected<RankPlace, std::string> place(const Environment& variables) {
  return rank_of_environment(lookup_in(variables));
}

const Environment kOpenMpi = {{"OMPI_COMM_WORLD_RANK", "2"},
                              {"OMPI_COMM_WORLD_SIZE", "6"},
                              {"OMPI_COMM_WORLD_LOCAL_RANK", "1"},
                              {"OMPI_COMM_WORLD_LOCAL_SIZE", "3"}};
TEST(RankOfEnvironment, OfEachLauncher) {
  EXPECT_EQ(place(kOpenMpi), (RankPlace{2, 6, 1, 3}));
  EXPECT_EQ(place({{"PMI_RANK", "0"},
                   {"PMI_SIZE", "4"},
                   {"MPI_LOCALRANKID", "0"},
                   {"MPI_LOCALNRANKS", "2"}}),
            (RankPlace{0, 4, 0, 2}));
}

TEST(RankOfEnvironment, SaysWhatIsMissingOrWrong) {
  EXPECT_THAT(place({}).error(), HasSubstr("no mpirun has started"));
  for (const auto& [name, value] : kOpenMpi) {
    if (name == "OMPI_COMM_WORLD_RANK") continue;
    Environment less = kOpenMpi;
    less.erase(name);
    EXPECT_THAT(place(less).error(), HasSubstr("but " + name + " is \"\""));
  }
  for (const char* const text : {"", "-1", "x", "1x", "99999999999999999999", " 1"}) {
    Environment wrong = kOpenMpi;
    wrong["OMPI_COMM_WORLD_LOCAL_RANK"] = text;
    EXPECT_THAT(place(wrong).error(), HasSubstr("no number of a rank")) << text;
  }
}

TEST(SlurmCounts, AreExpanded) {
  EXPECT_THAT(*expand_counts("2(x3),1"), ElementsAre(2, 2, 2, 1));
  EXPECT_THAT(*expand_counts("16"), ElementsAre(16));
  for (const char* const text : {"", "0", "2(x3", "2(x)", "2(x0)", "2(3)", "a", "1,", "1 ", "-1",
                                 "1(x999999)", "2(x65000),2(x65000)"}) {
    EXPECT_FALSE(expand_counts(text)) << text;
  }
}

/// Hosts of an allocation whose scontrol gives each comma of the list a line; or the error.
std::string slurm(Environment variables) {
  const internal::test::TemporaryFolder folder;
  std::ofstream(folder.file("scontrol")) << "#!/bin/sh\nprintf '%s' \"$3\" | /usr/bin/tr , '\\n'\n";
  std::filesystem::permissions(folder.file("scontrol"), std::filesystem::perms::owner_all);
  variables.try_emplace("PATH", folder.path());
  const auto hosts = slurm_hosts(lookup_in(variables));
  if (!hosts) return hosts.error();
  std::string text;
  for (const HostSlots& host : *hosts) text += fmt::format("{}:{} ", host.name, host.slots);
  return text;
}

TEST(SlurmHosts, HaveTasksWhereAskedForElseCores) {
  Environment variables{{"SLURM_JOB_NODELIST", "a1,a2"},
                        {"SLURM_TASKS_PER_NODE", "1(x2)"},
                        {"SLURM_JOB_CPUS_PER_NODE", "8,4"}};
  EXPECT_EQ(slurm(variables), "a1:8 a2:4 ");
  variables["SLURM_CPUS_PER_TASK"] = "3";
  EXPECT_EQ(slurm(variables), "a1:2 a2:1 ");
  variables["SLURM_NTASKS"] = "2";
  EXPECT_EQ(slurm(variables), "a1:1 a2:1 ");
  EXPECT_EQ(slurm({}), "");
  variables["PATH"] = "/none";
  EXPECT_THAT(slurm(variables), HasSubstr("scontrol, which says its hosts, is not on PATH"));
}

TEST(SlurmHosts, SayWhatContradicts) {
  EXPECT_THAT(slurm({{"SLURM_JOB_NODELIST", "a"}, {"SLURM_JOB_CPUS_PER_NODE", "1(x2)"}}),
              HasSubstr("names 1 hosts, but SLURM_JOB_CPUS_PER_NODE has numbers for 2 hosts"));
  EXPECT_THAT(slurm({{"SLURM_JOB_NODELIST", "a"}}), HasSubstr("SLURM_JOB_CPUS_PER_NODE: "));
  EXPECT_THAT(slurm({{"SLURM_JOB_NODELIST", "-oProxy"}}), HasSubstr("SLURM_JOB_NODELIST=\"-oP"));
}

TEST(SrunPrefix, StartsOneProcessOnOneHost) {
  const auto prefix = srun_prefix("/usr/bin/srun", "a1");
  EXPECT_EQ(prefix.front(), "/usr/bin/srun");
  EXPECT_THAT(prefix, testing::IsSupersetOf(
                          {"--nodes=1", "--ntasks=1", "--nodelist=a1", "--overlap", "--mpi=none"}));
}

}  // namespace
}  // namespace hora::launch
