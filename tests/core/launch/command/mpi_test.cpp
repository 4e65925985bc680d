#include "core/launch/command/mpi.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <spdlog/fmt/fmt.h>

#include <filesystem>
#include <fstream>

#include "core/launch/command/command.h"
#include "tests/support/temporary_folder.h"

namespace hora::launch {
namespace {

using testing::AllOf;
using testing::Contains;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;

MpiCommandInput input_for(MpiFlavour flavour) {
  MpiCommandInput input;
  input.mpi = {flavour, "1", "/usr/bin/mpirun", ""};
  input.hosts = {{"a", 2, true}, {"b", 3, false}};
  input.remote_shell = {"/usr/bin/horarun", "--remote-shell"};
  input.rank_command = {"/usr/bin/horarun", "--guard", "./train"};
  return input;
}

Command command_of(const MpiCommandInput& input) {
  auto command = mpi_command(input);
  EXPECT_TRUE(command) << (command ? "" : command.error());
  return command.value_or(Command{});
}

std::string line_of(const MpiCommandInput& input) {
  return as_shell_line(command_of(input));
}

TEST(MpiCommand, OfOpenMpi4) {
  MpiCommandInput input = input_for(MpiFlavour::open_mpi_4);
  input.mpi.daemon = "/usr/bin/orted";
  input.network.subnets = {"10.0.0.0/24", "10.1.0.0/16"};
  input.network.interfaces = {"eth0"};
  input.extra_arguments = {"--mca", "btl", "self,tcp"};
  input.allow_run_as_root = true;
  EXPECT_EQ(line_of(input),
            "OMPI_MCA_opal_signal=7,8,11 "
            "OMPI_MCA_btl_tcp_if_include=10.0.0.0/24,10.1.0.0/16 "
            "OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 "
            "OMPI_MCA_oob_tcp_if_include=10.0.0.0/24,10.1.0.0/16 "
            "/usr/bin/mpirun --noprefix --mca plm rsh "
            "--mca plm_rsh_agent '/usr/bin/horarun --remote-shell' "
            "--mca plm_rsh_no_tree_spawn 1 --mca orte_launch_agent /usr/bin/orted "
            "--mca ras '^slurm,lsf,gridengine,tm,loadleveler,alps' "
            "--map-by slot --rank-by slot --bind-to none --mca plm_rsh_args '' "
            "--mca orte_leave_session_attached 1 --mca rtc_hwloc_vmhole none --host "
            "localhost:2,b:3 --mca btl self,tcp -np 5 "
            "/usr/bin/horarun --guard ./train");
}

TEST(MpiCommand, OfOpenMpi4WhereItsOwnHostIsNotTheFirst) {
  MpiCommandInput input = input_for(MpiFlavour::open_mpi_4);
  std::swap(input.hosts[0], input.hosts[1]);
  EXPECT_THAT(line_of(input),
              HasSubstr(" none -np 3 --host b:3 /usr/bin/horarun --guard ./train : -np 2 --host "
                        "localhost:2 /usr/bin/horarun --guard ./train"));
}

TEST(MpiCommand, OfOpenMpi5) {
  MpiCommandInput input = input_for(MpiFlavour::open_mpi_5);
  input.network.subnets = {"10.0.0.0/24"};
  input.network.interfaces = {"eth0", "eth1"};
  EXPECT_EQ(line_of(input),
            "OMPI_MCA_opal_signal=7,8,11 OMPI_MCA_btl_tcp_if_include=10.0.0.0/24 "
            "PRTE_MCA_prte_if_include=eth0,eth1 /usr/bin/mpirun --noprefix --prtemca plm ssh "
            "--prtemca plm_ssh_agent '/usr/bin/horarun --remote-shell' "
            "--prtemca plm_ssh_no_tree_spawn 1 --prtemca ras '^slurm,lsf,gridengine,pbs,flux' "
            "--map-by slot --rank-by slot --bind-to none --leave-session-attached --host "
            "localhost:2,b:3 -np 5 "
            "/usr/bin/horarun --guard ./train");
}

TEST(MpiCommand, OfOpenMpi5NamesNoLoopbackToItsDaemons) {
  MpiCommandInput input = input_for(MpiFlavour::open_mpi_5);
  input.network.interfaces = {"lo"};
  input.network.local_address = "127.0.0.1";
  EXPECT_THAT(line_of(input), AllOf(HasSubstr("OMPI_MCA_btl_tcp_if_include=lo "),
                                    Not(HasSubstr("prte_if_include"))));
}

TEST(MpiCommand, OfOneHostHasNoSocketsForItsRanks) {
  for (const MpiFlavour flavour : {MpiFlavour::open_mpi_4, MpiFlavour::open_mpi_5}) {
    MpiCommandInput input = input_for(flavour);
    EXPECT_THAT(line_of(input), Not(HasSubstr("OMPI_MCA_btl=")));
    input.hosts.pop_back();
    EXPECT_THAT(line_of(input), HasSubstr("OMPI_MCA_btl='^tcp,ofi' "));
  }
}

TEST(MpiCommand, OfHydra) {
  MpiCommandInput input = input_for(MpiFlavour::hydra);
  input.network.local_address = "10.0.0.1";
  EXPECT_EQ(line_of(input),
            "HYDRA_LAUNCHER_EXTRA_ARGS=--remote-shell /usr/bin/mpirun -launcher rsh -launcher-exec "
            "/usr/bin/horarun -rmk user -bind-to none -genvnone -localhost 10.0.0.1 "
            "-hosts 10.0.0.1:2,b:3 -np 5 /usr/bin/horarun --guard ./train");
  input.network.local_address.clear();
  EXPECT_THAT(line_of(input), AllOf(HasSubstr("-hosts a:2,b:3"), Not(HasSubstr("-localhost"))));
}

TEST(MpiCommand, LeavesToTheUserWhatTheUserGives) {
  MpiCommandInput input = input_for(MpiFlavour::open_mpi_5);
  input.extra_arguments = {"--map-by", "node", "-bind-to", "core", "--prtemca", "ras", "slurm"};
  const Command command = command_of(input);
  EXPECT_EQ(std::ranges::count(command.arguments, "--map-by"), 1);
  EXPECT_THAT(command.arguments, Not(Contains("--bind-to")));
  EXPECT_EQ(std::ranges::count(command.arguments, "ras"), 1);
}

std::string refusal(const MpiCommandInput& input) {
  const auto command = mpi_command(input);
  EXPECT_FALSE(command);
  return command ? "" : command.error();
}

TEST(MpiCommand, RefusesWhatWouldPassItsAgents) {
  for (const MpiFlavour flavour :
       {MpiFlavour::open_mpi_4, MpiFlavour::open_mpi_5, MpiFlavour::hydra}) {
    for (const char* const argument : {"--host", "-H", "-hosts", "--hostfile", "-np", "-n",
                                       "plm_rsh_agent", "plm_rsh_args", "plm", "-launcher"}) {
      MpiCommandInput input = input_for(flavour);
      input.extra_arguments = {argument, "x"};
      EXPECT_THAT(refusal(input), HasSubstr("is horarun's own")) << argument;
    }
  }
}

TEST(MpiCommand, RefusesWhatMpirunsOptionsCannotCarry) {
  const auto refused = [](const auto& change) {
    MpiCommandInput input = input_for(MpiFlavour::open_mpi_4);
    change(input);
    return refusal(input);
  };
  EXPECT_THAT(refused([](auto& input) { input.remote_shell.front() = "/my tools/horarun"; }),
              AllOf(HasSubstr("\"/my tools/horarun\""), HasSubstr("a blank")));
}

TEST(NetworkVariables, NameTheHostsInterfaces) {
  EXPECT_THAT(network_variables({}, false), IsEmpty());
  EXPECT_THAT(network_variables({"eth0", "eth1"}, false),
              ElementsAre(Variable{"NCCL_SOCKET_IFNAME", "=eth0,eth1"},
                          Variable{"GLOO_SOCKET_IFNAME", "eth0"}, Variable{"FI_TCP_IFACE", "eth0"},
                          Variable{"UCX_NET_DEVICES", "eth0,eth1"}));
  EXPECT_THAT(network_variables({"eth0"}, true),
              Not(Contains(testing::Field(&Variable::name, "UCX_NET_DEVICES"))));
}

/// The flavour, a digit, and the version; or the error.
std::string version_of(const std::string& output) {
  const auto mpi = parse_mpi_version("/opt/mpirun", output);
  if (!mpi) return mpi.error();
  return std::to_string(static_cast<int>(mpi->flavour)) + " " + mpi->version;
}

TEST(MpiVersion, IsReadFromMpirunsOwnWords) {
  EXPECT_EQ(version_of("mpirun (Open MPI) 4.1.4\n\nReport bugs to http://www.open-mpi.org/\n"),
            "0 4.1.4");
  EXPECT_EQ(version_of("mpiexec (OpenRTE) 4.1.4\n"), "0 4.1.4");
  EXPECT_EQ(version_of("mpirun (Open MPI) 3.1.0\n"), "0 3.1.0");
  EXPECT_EQ(version_of("mpirun (Open MPI) 5.0.11\n"), "1 5.0.11");
  EXPECT_EQ(version_of("mpirun (Open MPI) 10.0.0rc1\n"), "1 10.0.0rc1");
  EXPECT_EQ(version_of("HYDRA build details:\n    Version:       4.0.2\n    CC:      gcc -g\n"),
            "2 4.0.2");
  for (const char* const output :
       {"", "\n\n", "Intel(R) MPI Library for Linux* OS, Version 2021.9\nCopyright 2003",
        "mpirun (Open MPI) 1.10.2", "mpirun (Open MPI) x", "HYDRA build details:\n Version:\n",
        "\x1b[31mred"}) {
    EXPECT_THAT(version_of(output),
                AllOf(HasSubstr("\"/opt/mpirun\" --version says \""), HasSubstr("--mpirun")));
  }
  EXPECT_THAT(version_of("Intel(R) MPI\nmore"), HasSubstr("says \"Intel(R) MPI\";"));
}

class FindMpi : public testing::Test {
 protected:
  std::string program(const std::string& name, const std::string& text) {
    std::ofstream(folder_.file(name)) << "#!/bin/sh\n" << text << "\n";
    std::filesystem::permissions(folder_.file(name), std::filesystem::perms::owner_all);
    return folder_.file(name);
  }
  internal::test::TemporaryFolder folder_;
};

TEST_F(FindMpi, TakesTheExplicitOneThenTheBuildsThenThatOnPath) {
  const std::string path = program("mpirun", "echo 'mpirun (Open MPI) 4.1.4'");
  const std::string orted = program("orted", "");
  const std::string built = program("built", "echo 'mpirun (Open MPI) 5.0.1'");
  const std::string explicit_path =
      program("other", "echo 'HYDRA build details:'; echo Version: 4.1");
  const std::string folders = "relative:/nonexistent::" + folder_.path().string();
  const auto found = [&](const std::string& named, const std::string& of_build) {
    const auto mpi = find_mpi(named, of_build, folders);
    return mpi ? fmt::format("{} {} {}", mpi->mpirun, mpi->version, mpi->daemon) : mpi.error();
  };
  EXPECT_EQ(found(explicit_path, built), explicit_path + " 4.1 ");
  EXPECT_EQ(found("other", built), explicit_path + " 4.1 ");
  EXPECT_EQ(found("", built), built + " 5.0.1 ");
  EXPECT_EQ(found("", "/nonexistent/mpirun"), path + " 4.1.4 " + orted);
}

TEST_F(FindMpi, SaysWhatToInstallWhereThereIsNone) {
  const auto none = find_mpi("", "/built/mpirun", "/nonexistent");
  ASSERT_FALSE(none);
  EXPECT_THAT(none.error(), AllOf(HasSubstr("/built/mpirun"), HasSubstr("apt install openmpi-bin"),
                                  HasSubstr("--mpirun")));
  const auto named = find_mpi("/no/such", "/built/mpirun", "/nonexistent");
  ASSERT_FALSE(named);
  EXPECT_THAT(named.error(), HasSubstr("--mpirun \"/no/such\": there is no such program"));
}

TEST_F(FindMpi, SaysWhatAnotherProgramPrinted) {
  const auto found = find_mpi(program("mpirun", "echo broken >&2; exit 1"), "", "");
  ASSERT_FALSE(found);
  EXPECT_THAT(found.error(), HasSubstr("says \"broken\""));
}

}  // namespace
}  // namespace hora::launch
