// Commands, the cores of ranks, and the command lines of each MPI.
#include "core/launch/command/command.h"

#include <fmt/ranges.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <map>
#include <set>
#include <tuple>

#include "core/launch/command/cores.h"
#include "core/launch/command/mpi.h"
#include "core/launch/control/system.h"
#include "core/launch/text.h"
#include "tests/core/launch/texts.h"
#include "tests/support/seed.h"

namespace hora::launch {
namespace {

using testing::ElementsAre;

std::string lines(const std::vector<std::string>& texts) {
  return fmt::format("{}\n", fmt::join(texts, "\n"));
}

TEST(Words, AreWrittenForShellsAndForMpirunAndPathsFromTheFolder) {
  test::expect_texts(
      "words for shells and mpirun",
      lines({as_shell_word("/usr/bin/a-b_c:1,2"), as_shell_word(""), as_shell_word("a b"),
             as_shell_word("it's"), as_shell_word("^slurm"),
             as_shell_line({{"mpirun", "-np", "2", "a b"}, {{"A", "1"}, {"B", "x y"}}}),
             as_shell_line({{"A=1", "b=2"}, {}}), encode_words({"./train", "--epochs", "3"}),
             encode_words({"--odd", "a b", "", ":", "x,y", "%", "\xff"}),
             program_from("/home/me", "./train"), program_from("/home/me", "bin/train"),
             program_from("/home/me", "/opt/train"), program_from("/home/me", "python3")}));
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
  std::string text;
  for (const char* const each : {"a b", "%", "%4", "%4g", "a:", "%aa"}) {
    text += test::error_of(decode_words(each)) + "\n";
  }
  test::expect_texts("words that are not encoded", text);
}

TEST(InspectProgram, FindsItOrSaysWhyItCannotRun) {
  const internal::test::TemporaryFolder folder;
  const std::string train = test::script(folder, "train", "");
  EXPECT_EQ(inspect_program("/proc/self/exe", ""), "/proc/self/exe");
  EXPECT_EQ(inspect_program("train", "/bin:" + folder.path().string()), train);
  std::string text;
  for (const std::string& program :
       {std::string("/no/such"), std::string("nosuch"), folder.path().string(),
        test::written(folder, "plain", "#!/bin/sh\n"), std::string("/dev/null")}) {
    text += test::error_of(inspect_program(program, "/bin")) + "\n";
  }
  test::expect_texts("programs that cannot run", test::with(text, folder.path(), "FOLDER"));
}

TEST(Forwarded, AreSettingsAndSearchPaths) {
  std::string text;
  for (const std::string_view name : split_at_spaces(
           "HORA_LOG_LEVEL NCCL_DEBUG UCX_TLS OMP_NUM_THREADS MKL_NUM_THREADS PATH LD_LIBRARY_PATH "
           "PYTHONPATH CUDA_VISIBLE_DEVICES OMPI_MCA_btl PRTE_MCA_plm HORARUN_TOKEN HORARUN_ "
           "SSH_AUTH_SOCK SLURM_JOB_ID DISPLAY HOME TMPDIR OMPI_COMM_WORLD_RANK PMIX_RANK PMI_RANK "
           "OMPI_MCA_orte_hnp_uri OMPI_MCA_ess_base_vpid LD_PRELOAD AWS_SECRET_ACCESS_KEY path "
           "PATHS HORA")) {
    text += fmt::format("{}: {}\n", name, is_forwarded(name));
  }
  test::expect_texts("variables that are forwarded", text);
  EXPECT_FALSE(is_forwarded(""));
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

TEST(RankOfEnvironment, IsThatOfEachLauncherOrSaysWhatIsMissingOrWrong) {
  const Environment open_mpi = {{"OMPI_COMM_WORLD_RANK", "2"},
                                {"OMPI_COMM_WORLD_SIZE", "6"},
                                {"OMPI_COMM_WORLD_LOCAL_RANK", "1"},
                                {"OMPI_COMM_WORLD_LOCAL_SIZE", "3"}};
  std::vector<Environment> environments{
      open_mpi,
      {{"PMI_RANK", "0"}, {"PMI_SIZE", "4"}, {"MPI_LOCALRANKID", "0"}, {"MPI_LOCALNRANKS", "2"}},
      {}};
  for (const auto& [name, value] : open_mpi) {
    environments.push_back(open_mpi);
    environments.back().erase(name);
  }
  for (const char* const wrong : {"", "-1", "x", "1x", "99999999999999999999", " 1"}) {
    environments.push_back(open_mpi);
    environments.back()["OMPI_COMM_WORLD_LOCAL_RANK"] = wrong;
  }
  std::string text;
  for (const Environment& each : environments) {
    const auto place = rank_of_environment(lookup_in(each));
    text += !place ? place.error() + "\n"
                   : fmt::format("{} of {}, {} of {}\n", place->rank, place->size,
                                 place->local_rank, place->local_size);
  }
  test::expect_texts("ranks of environments", text);
}

TEST(SlurmCounts, AreExpanded) {
  EXPECT_THAT(*expand_counts("2(x3),1"), ElementsAre(2, 2, 2, 1));
  EXPECT_THAT(*expand_counts("16"), ElementsAre(16));
  for (const char* const text : {"", "0", "2(x3", "2(x)", "2(x0)", "2(3)", "a", "1,", "1 ", "-1",
                                 "1(x999999)", "2(x65000),2(x65000)"}) {
    EXPECT_FALSE(expand_counts(text)) << text;
  }
}

/// In an allocation whose scontrol gives each comma of the list a line.
TEST(SlurmHosts, HaveTasksWhereAskedForElseCores) {
  const internal::test::TemporaryFolder folder;
  test::script(folder, "scontrol", "printf '%s' \"$3\" | /usr/bin/tr , '\\n'");
  std::string text;
  for (Environment variables :
       std::vector<Environment>{{},
                                {{"SLURM_JOB_NODELIST", "a"}, {"SLURM_JOB_CPUS_PER_NODE", "1(x2)"}},
                                {{"SLURM_JOB_NODELIST", "a"}},
                                {{"SLURM_JOB_NODELIST", "-oProxy"}},
                                {{"SLURM_CPUS_PER_TASK", "1"}},
                                {{"SLURM_CPUS_PER_TASK", "3"}},
                                {{"SLURM_CPUS_PER_TASK", "3"}, {"SLURM_NTASKS", "2"}},
                                {{"PATH", "/none"}}}) {
    if (!variables.empty() && !variables.contains("SLURM_JOB_NODELIST")) {
      variables.insert({{"SLURM_JOB_NODELIST", "a1,a2"},
                        {"SLURM_TASKS_PER_NODE", "1(x2)"},
                        {"SLURM_JOB_CPUS_PER_NODE", "8,4"}});
    }
    variables.try_emplace("PATH", folder.path());
    const auto hosts = slurm_hosts(lookup_in(variables));
    if (!hosts) text += hosts.error();
    for (const HostSlots& host : hosts.value_or(std::vector<HostSlots>())) {
      text += fmt::format("{}:{} ", host.name, host.slots);
    }
    text += "\n";
  }
  test::expect_texts("hosts of Slurm", text);
}

TEST(SrunPrefix, StartsOneProcessOnOneHost) {
  const auto prefix = srun_prefix("/usr/bin/srun", "a1");
  EXPECT_EQ(prefix.front(), "/usr/bin/srun");
  EXPECT_THAT(prefix, testing::IsSupersetOf(
                          {"--nodes=1", "--ntasks=1", "--nodelist=a1", "--overlap", "--mpi=none"}));
}

/// Numbered as Linux does it: first one hyperthread of each core, then the second ones.
GrantedCores machine(int numas, int cores_each, int hyperthreads = 1) {
  GrantedCores granted;
  const int cores = numas * cores_each;
  for (int cpu = 0; cpu < cores * hyperthreads; ++cpu) {
    granted.cpus.push_back({cpu, cpu % cores, cpu % cores / cores_each});
  }
  return granted;
}

/// With a limit of the cgroup's.
GrantedCores limited(GrantedCores granted, double limit) {
  granted.limit = limit;
  granted.limited_by = "the cgroup's quota";
  return granted;
}

/// The cores in words, and each rank's share.
std::string shares(const GrantedCores& granted, int ranks, Binding binding = Binding::automatic) {
  std::string text = describe_cores(granted, ranks, binding, ranks, "") + "\n ";
  for (int rank = 0; rank < ranks; ++rank) {
    const CoreShare one = share_of_cores(granted, rank, ranks, binding, ranks);
    text += fmt::format(" {} for {}{};", one.cpus, one.threads, one.is_shared ? ", shared" : "");
  }
  return text;
}

TEST(ShareOfCores, IsAnEqualPieceWithItsHyperthreads) {
  using enum Binding;
  GrantedCores masked;
  masked.cpus = {{5, 1, 0}, {13, 5, 1}, {1, 1, 0}, {12, 4, 1}};
  const GrantedCores eight = machine(1, 8);
  test::expect_texts(
      "shares of cores",
      lines({shares(machine(1, 1), 1), shares(machine(1, 2), 2), shares(machine(1, 4, 2), 2),
             shares(machine(2, 2), 2), shares(machine(1, 4), 1), shares(eight, 3),
             // More ranks than cores.
             shares(machine(1, 2), 3), shares(machine(1, 2, 2), 4), shares(machine(1, 2), 3, cores),
             shares(limited(eight, 4.5), 2), shares(limited(eight, 0.5), 1),
             shares(limited(eight, 0.5), 2), shares(limited(eight, 8), 2),
             shares(machine(2, 4), 4, none), shares(machine(2, 4), 4, numa), shares({}, 2),
             shares(masked, 2),
             // One core is the engine's where that is an eighth at most, but where it has
             // hyperthreads, or what is left over.
             shares(machine(1, 16), 1), shares(machine(1, 16), 2), shares(machine(1, 14), 2),
             shares(machine(1, 16, 2), 2), shares(machine(1, 17), 2),
             describe_cores(eight, 2, automatic, 2, "3")}));
  EXPECT_EQ(share_of_cores(eight, 0, 1, automatic, 2).threads, 7);
}

/// On random machines: pieces are disjoint, hold every core, and no rank has more threads than
/// cores.
TEST(ShareOfCores, GivesEachCoreToOneRankAndEachThreadACore) {
  auto random = internal::test::generator();
  const auto draw = [&](int least, int most) {
    return std::uniform_int_distribution<int>(least, most)(random);
  };
  for (int round = 0; round < 500; ++round) {
    GrantedCores granted = machine(draw(1, 4), draw(1, 16), draw(1, 2));
    std::ranges::shuffle(granted.cpus, random);
    granted.cpus.resize(static_cast<std::size_t>(draw(1, static_cast<int>(granted.cpus.size()))));
    std::map<int, int> core_of;
    std::set<int> cores;
    for (const LogicalCpu& cpu : granted.cpus) {
      core_of[cpu.cpu] = cpu.core;
      cores.insert(cpu.core);
    }
    const int ranks = draw(1, static_cast<int>(cores.size()));
    std::set<int> given;
    std::size_t cpus = 0;
    for (int rank = 0; rank < ranks; ++rank) {
      const CoreShare piece = share_of_cores(granted, rank, ranks, Binding::automatic, ranks);
      std::set<int> own;
      for (const int cpu : piece.cpus) own.insert(core_of.at(cpu));
      EXPECT_LE(piece.threads, static_cast<int>(own.size()));
      EXPECT_GE(piece.threads, 1);
      EXPECT_LE(own.size(), cores.size() / static_cast<std::size_t>(ranks) + 1);
      for (const int core : own) EXPECT_TRUE(given.insert(core).second);
      cpus += piece.cpus.size();
    }
    EXPECT_EQ(given, cores);
    EXPECT_EQ(cpus, granted.cpus.size());
  }
}

TEST(Binding, HasNames) {
  for (const Binding binding : {Binding::automatic, Binding::none, Binding::cores, Binding::numa}) {
    EXPECT_EQ(parse_binding(name_of(binding)), binding);
  }
  EXPECT_EQ(parse_binding("socket"), std::nullopt);
}

TEST(RankVariables, SayThreadsAndWhetherWaitingRanksYield) {
  EXPECT_THAT(rank_variables({{}, 3}), ElementsAre(Variable{"OMP_NUM_THREADS", "3"}));
  EXPECT_THAT(
      rank_variables({{}, 1, true}),
      ElementsAre(Variable{"OMP_NUM_THREADS", "1"}, Variable{"OMPI_MCA_mpi_yield_when_idle", "1"}));
}

TEST(GrantedCores, OfThisMachine) {
  const GrantedCores granted = granted_cores();
  EXPECT_FALSE(granted.cpus.empty());
  const CoreShare all = share_of_cores(granted, 0, 1, Binding::cores, 1);
  EXPECT_EQ(all.cpus.size(), granted.cpus.size());
  EXPECT_GE(all.threads, 1);
}

using Files = std::map<std::string, std::string>;

FileReader reader_of(const Files& files) {
  return [&files](const std::string& path) -> std::optional<std::string> {
    const auto found = files.find(path);
    return found == files.end() ? std::nullopt : std::optional(found->second);
  };
}

double limit_of(const Files& files) {
  return cgroup_cpu_limit(reader_of(files));
}

TEST(CgroupLimit, IsTheLeastUpToTheRootAndNoneOfOddFiles) {
  Files files = {{"/proc/self/cgroup", "0::/a/b/c\n"},
                 {"/sys/fs/cgroup/a/b/c/cpu.max", "max 100000\n"},
                 {"/sys/fs/cgroup/a/b/cpu.max", "250000 100000\n"},
                 {"/sys/fs/cgroup/a/cpu.max", "400000 100000\n"}};
  EXPECT_EQ(limit_of(files), 2.5);
  files["/sys/fs/cgroup/cpu.max"] = "50000 100000\n";
  EXPECT_EQ(limit_of(files), 0.5);
  EXPECT_EQ(limit_of({}), 0);
  for (const char* const text : {"", "\n", ":::", "0::", "x", "0::a", "0::////"}) {
    EXPECT_EQ(limit_of({{"/proc/self/cgroup", text}, {"/sys/fs/cgroup/cpu.max", "1"}}), 0) << text;
  }
  for (const auto& [text, limit] : {std::pair("1 2", 0.5), std::pair("1 0", 0.0)}) {
    EXPECT_EQ(limit_of({{"/proc/self/cgroup", "0::/"}, {"/sys/fs/cgroup/cpu.max", text}}), limit);
  }
}

TEST(AvailableMemory, IsTheLeastUpToTheRoot) {
  const auto memory_of = [](const Files& files) { return available_memory(reader_of(files)); };
  EXPECT_EQ(memory_of({}), 0U);
  EXPECT_EQ(memory_of({{"/proc/meminfo", "MemTotal: 1 kB\n"}}), 0U);
  Files files = {
      {"/proc/meminfo", "MemTotal: 2000 kB\nMemFree: 100 kB\nMemAvailable:    1000 kB\n"}};
  EXPECT_EQ(memory_of(files), 1024000U) << "the host's, without a cgroup";
  files.insert({{"/proc/self/cgroup", "0::/a/b\n"},
                {"/sys/fs/cgroup/a/b/memory.max", "max\n"},
                {"/sys/fs/cgroup/a/b/memory.current", "70000\n"},
                {"/sys/fs/cgroup/a/memory.max", "100000\n"},
                {"/sys/fs/cgroup/a/memory.current", "90000\n"}});
  EXPECT_EQ(memory_of(files), 10000U);
  files["/sys/fs/cgroup/a/memory.stat"] = "anon 5\ninactive_file 20000\n";
  EXPECT_EQ(memory_of(files), 30000U) << "page cache gives way";
  files["/sys/fs/cgroup/a/memory.current"] = "200000";
  EXPECT_EQ(memory_of(files), 1U) << "used up, but known";
  EXPECT_GT(available_memory(read_small_file), 0U) << "this machine's";
}

TEST(OomKills, AreThoseOfTheCgroupItself) {
  const auto kills = [](const Files& files) { return oom_kills(reader_of(files)); };
  Files files = {{"/proc/self/cgroup", "0::/a/b\n"},
                 {"/sys/fs/cgroup/memory.events", "oom_kill 4"}};
  EXPECT_EQ(kills(files), 4U) << "a container sees its own as the root";
  files.insert({{"/sys/fs/cgroup/a/b/memory.events", "low 0\noom 3\noom_kill 2\n"},
                {"/sys/fs/cgroup/a/memory.events", "oom_kill 9\n"}});
  EXPECT_EQ(kills(files), 2U);
  EXPECT_EQ(kills({}), 0U);
}

MpiCommandInput input_for(MpiFlavour flavour) {
  MpiCommandInput input;
  input.mpi = {flavour, "1", "/usr/bin/mpirun", ""};
  input.hosts = {{"a", 2, true}, {"b", 3, false}};
  input.remote_shell = {"/usr/bin/horarun", "--remote-shell"};
  input.rank_command = {"/usr/bin/horarun", "--guard", "./train"};
  return input;
}

/// An input like that of input_for() but for one thing.
MpiCommandInput changed(MpiFlavour flavour, const std::function<void(MpiCommandInput&)>& change) {
  MpiCommandInput input = input_for(flavour);
  change(input);
  return input;
}

TEST(MpiCommand, IsThatOfEachMpi) {
  using enum MpiFlavour;
  std::string text;
  for (const MpiCommandInput& input :
       {changed(open_mpi_4,
                [](auto& input) {
                  input.mpi.daemon = "/usr/bin/orted";
                  input.network.subnets = {"10.0.0.0/24", "10.1.0.0/16"};
                  input.network.interfaces = {"eth0"};
                  input.extra_arguments = {"--mca", "btl", "self,tcp"};
                  input.allow_run_as_root = true;
                }),
        // Its own host is not the first.
        changed(open_mpi_4, [](auto& input) { std::swap(input.hosts[0], input.hosts[1]); }),
        changed(open_mpi_5,
                [](auto& input) {
                  input.network.subnets = {"10.0.0.0/24"};
                  input.network.interfaces = {"eth0", "eth1"};
                }),
        // Its daemons are told no loopback.
        changed(open_mpi_5,
                [](auto& input) {
                  input.network.interfaces = {"lo"};
                  input.network.local_address = "127.0.0.1";
                }),
        // Ranks of one host have no sockets.
        changed(open_mpi_4, [](auto& input) { input.hosts.pop_back(); }),
        changed(open_mpi_5, [](auto& input) { input.hosts.pop_back(); }),
        changed(hydra, [](auto& input) { input.network.local_address = "10.0.0.1"; }),
        input_for(hydra),
        // The user's own arguments.
        changed(open_mpi_5,
                [](auto& input) {
                  input.extra_arguments = {"--map-by",  "node", "-bind-to", "core",
                                           "--prtemca", "ras",  "slurm"};
                }),
        // Their options cannot carry this.
        changed(open_mpi_4,
                [](auto& input) { input.remote_shell.front() = "/my tools/horarun"; })}) {
    const auto command = mpi_command(input);
    text += (command ? as_shell_line(*command) : command.error()) + "\n";
  }
  test::expect_texts("commands of MPI", text);
}

TEST(MpiCommand, RefusesWhatWouldPassItsAgents) {
  for (const MpiFlavour flavour :
       {MpiFlavour::open_mpi_4, MpiFlavour::open_mpi_5, MpiFlavour::hydra}) {
    for (const char* const argument : {"--host", "-H", "-hosts", "--hostfile", "-np", "-n",
                                       "plm_rsh_agent", "plm_rsh_args", "plm", "-launcher"}) {
      MpiCommandInput input = input_for(flavour);
      input.extra_arguments = {argument, "x"};
      EXPECT_THAT(test::error_of(mpi_command(input)), testing::HasSubstr("is horarun's own"))
          << argument;
    }
  }
}

TEST(NetworkVariables, NameTheHostsInterfaces) {
  std::string text;
  for (const auto& [interfaces, has_rdma] :
       {std::pair(test::Line(), false), {{"eth0", "eth1"}, false}, {{"eth0"}, true}}) {
    for (const Variable& each : network_variables(interfaces, has_rdma)) {
      text += each.name + "=" + each.value + " ";
    }
    text += "\n";
  }
  test::expect_texts("variables of networks", text);
}

TEST(MpiVersion, IsReadFromMpirunsOwnWords) {
  std::string text;
  for (const char* const output :
       {"mpirun (Open MPI) 4.1.4\n\nReport bugs to http://www.open-mpi.org/\n",
        "mpiexec (OpenRTE) 4.1.4\n", "mpirun (Open MPI) 3.1.0\n", "mpirun (Open MPI) 5.0.11\n",
        "mpirun (Open MPI) 10.0.0rc1\n",
        "HYDRA build details:\n    Version:       4.0.2\n    CC:      gcc -g\n", "", "\n\n",
        "Intel(R) MPI Library for Linux* OS, Version 2021.9\nCopyright 2003",
        "mpirun (Open MPI) 1.10.2", "mpirun (Open MPI) x", "HYDRA build details:\n Version:\n",
        "\x1b[31mred"}) {
    const auto mpi = parse_mpi_version("/opt/mpirun", output);
    text += mpi ? fmt::format("{} {}\n", static_cast<int>(mpi->flavour), mpi->version)
                : mpi.error() + "\n";
  }
  test::expect_texts("versions of MPI", text);
}

TEST(FindMpi, TakesTheExplicitOneThenTheBuildsThenThatOnPath) {
  const internal::test::TemporaryFolder folder;
  test::script(folder, "mpirun", "echo 'mpirun (Open MPI) 4.1.4'");
  test::script(folder, "orted", "");
  const std::string built = test::script(folder, "built", "echo 'mpirun (Open MPI) 5.0.1'");
  const std::string other =
      test::script(folder, "other", "echo 'HYDRA build details:'; echo Version: 4.1");
  const std::string broken = test::script(folder, "broken", "echo broken >&2; exit 1");
  const std::string path = "relative:/nonexistent::" + folder.path().string();
  std::string text;
  for (const auto& [named, of_build, folders] : {std::tuple(other, built, path),
                                                 {"other", built, path},
                                                 {"", built, path},
                                                 {"", "/no/mpirun", path},
                                                 {"", "/no/mpirun", "/none"},
                                                 {"/no/such", built, "/none"},
                                                 {broken, "", ""}}) {
    const auto mpi = find_mpi(named, of_build, folders);
    text += mpi ? fmt::format("{} {} {}", mpi->mpirun, mpi->version, mpi->daemon) : mpi.error();
    text += "\n";
  }
  test::expect_texts("which MPI is found", test::with(text, folder.path(), "FOLDER"));
}

}  // namespace
}  // namespace hora::launch
