#include "core/launch/command/mpi_command.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "core/launch/command/command.h"
#include "core/launch/command/environment.h"

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
            "OMPI_MCA_oob_tcp_if_include=10.0.0.0/24,10.1.0.0/16 "
            "OMPI_MCA_btl_tcp_if_include=10.0.0.0/24,10.1.0.0/16 "
            "OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 "
            "/usr/bin/mpirun --noprefix --mca plm rsh "
            "--mca plm_rsh_agent '/usr/bin/horarun --remote-shell' --mca plm_rsh_args '' "
            "--mca plm_rsh_no_tree_spawn 1 --mca orte_leave_session_attached 1 "
            "--mca orte_launch_agent /usr/bin/orted "
            "--mca ras '^slurm,tm,gridengine,lsf,loadleveler,alps' --mca rtc_hwloc_vmhole none "
            "--map-by slot --rank-by slot "
            "--bind-to none --host localhost:2,b:3 --mca btl self,tcp -np 5 "
            "/usr/bin/horarun --guard ./train");
}

TEST(MpiCommand, OfOpenMpi4WhereItsOwnHostIsNotTheFirst) {
  MpiCommandInput input = input_for(MpiFlavour::open_mpi_4);
  std::swap(input.hosts[0], input.hosts[1]);
  EXPECT_THAT(line_of(input),
              HasSubstr("none -np 3 --host b:3 /usr/bin/horarun --guard ./train : -np 2 --host "
                        "localhost:2 /usr/bin/horarun --guard ./train"));
}

TEST(MpiCommand, OfOpenMpi5) {
  MpiCommandInput input = input_for(MpiFlavour::open_mpi_5);
  input.network.subnets = {"10.0.0.0/24"};
  input.network.interfaces = {"eth0", "eth1"};
  EXPECT_EQ(line_of(input),
            "OMPI_MCA_opal_signal=7,8,11 "
            "PRTE_MCA_prte_if_include=eth0,eth1 OMPI_MCA_btl_tcp_if_include=10.0.0.0/24 "
            "/usr/bin/mpirun --noprefix --leave-session-attached --prtemca plm ssh "
            "--prtemca plm_ssh_agent '/usr/bin/horarun --remote-shell' "
            "--prtemca plm_ssh_no_tree_spawn 1 --prtemca ras '^slurm,pbs,lsf,gridengine,flux' "
            "--map-by slot --rank-by slot --bind-to none --host localhost:2,b:3 -np 5 "
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
  EXPECT_THAT(without_users_own({{"A", "1"}, {"B", "2"}}, {"B", "C"}),
              ElementsAre(Variable{"A", "1"}));
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
  MpiCommandInput input = input_for(MpiFlavour::open_mpi_4);
  input.remote_shell.front() = "/my tools/horarun";
  EXPECT_THAT(refusal(input), AllOf(HasSubstr("\"/my tools/horarun\""), HasSubstr("a blank")));
  input = input_for(MpiFlavour::open_mpi_4);
  input.hosts[1].name = "fe80::1";
  EXPECT_THAT(refusal(input), HasSubstr("/etc/hosts"));
  input.hosts[1].name = "-oProxyCommand=x";
  EXPECT_THAT(refusal(input), HasSubstr("cannot carry"));
  input = input_for(MpiFlavour::open_mpi_4);
  input.hosts[1].is_local = true;
  EXPECT_THAT(refusal(input), HasSubstr("two of the hosts are this machine"));
  input = input_for(MpiFlavour::open_mpi_4);
  input.hosts[1].ranks = 0;
  EXPECT_THAT(refusal(input), HasSubstr("no rank"));
  input = input_for(MpiFlavour::open_mpi_4);
  input.hosts.clear();
  EXPECT_THAT(refusal(input), HasSubstr("no host"));
  input = input_for(MpiFlavour::open_mpi_4);
  input.rank_command = {"a", ":"};
  EXPECT_THAT(refusal(input), HasSubstr("another program"));
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

}  // namespace
}  // namespace hora::launch
