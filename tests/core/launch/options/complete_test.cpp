#include "core/launch/options/complete.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/core/launch/options/parsed.h"

namespace hora::launch {
namespace {

using test::parsed;
using test::refusal;
using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::StartsWith;

TEST(Complete, RanksFollowFromHosts) {
  EXPECT_EQ(parsed({"-H", "a:2,b:3", "t"}).np, 5);
  EXPECT_EQ(parsed({"-H", "a,b", "--nproc-per-node", "4", "t"}).np, 8);
  EXPECT_EQ(parsed({"--nproc-per-node", "4", "t"}).np, 4);
  EXPECT_EQ(parsed({"t"}).np, std::nullopt);
}

TEST(Complete, RanksPerHostLimitTheHosts) {
  const LaunchOptions options = parsed({"-H", "a:8,b:8", "-npernode", "2", "-np", "3", "t"});
  EXPECT_THAT(*lay_out_ranks(options.hosts, *options.np, false),
              ElementsAre(HostRanks{"a", 0, 2}, HostRanks{"b", 2, 1}));
  EXPECT_THAT(refusal({"-H", "a:8,b:8", "-npernode", "2", "-np", "5", "t"}),
              HasSubstr("together 4"));
  EXPECT_THAT(refusal({"-H", "a:1,b:8", "-npernode", "2", "t"}),
              AllOf(HasSubstr("host a has 1 slots"), HasSubstr("--oversubscribe")));
  EXPECT_THAT(refusal({"-npernode", "2", "-np", "4", "t"}), HasSubstr("name the hosts by -H"));
  EXPECT_THAT(refusal({"-H", "a,b", "-npernode", "65536", "t"}), HasSubstr("more than 65536"));
}

/// Whose hosts are known at the start only.
TEST(Complete, RanksPerHostHoldForEachHostOfAnAllocation) {
  const test::Line environment{"SLURM_JOB_NODELIST=n[1-2]"};
  EXPECT_EQ(parsed({"--nproc-per-node", "2", "t"}, environment).np, std::nullopt);
  EXPECT_EQ(parsed({"--nproc-per-node", "2", "-np", "4", "t"}, environment).np, 4);
  EXPECT_EQ(parsed({"--nproc-per-node", "2", "t"}, {"SLURM_JOB_NODELIST="}).np, 2);
}

TEST(Complete, RanksFollowFromNodes) {
  const test::Line meeting{"--rendezvous", "tcp://a:1", "--nnodes", "2"};
  const auto with = [&](test::Line more) {
    test::Line line = meeting;
    line.insert(line.end(), more.begin(), more.end());
    line.emplace_back("t");
    return line;
  };
  EXPECT_EQ(parsed(with({"--nproc-per-node", "4"})).np, 8);
  EXPECT_EQ(parsed(with({})).np, 2);
  EXPECT_EQ(parsed(with({"-np", "6"})).ranks_per_host, 3);
  EXPECT_THAT(refusal(with({"-np", "5"})), HasSubstr("shared evenly"));
  EXPECT_THAT(refusal(with({"-np", "5", "--nproc-per-node", "2"})), HasSubstr("are 4 ranks"));
  EXPECT_THAT(refusal(with({"--nproc-per-node", "65536"})), HasSubstr("at most 65536"));
  EXPECT_THAT(refusal(with({"--node-rank", "2"})), StartsWith("--node-rank \"2\": there are 2"));
  EXPECT_THAT(refusal(with({"-H", "a:2"})), HasSubstr("give one of them"));
}

TEST(Complete, SeveralNodesNeedAPlaceToMeet) {
  EXPECT_THAT(refusal({"--nnodes", "2", "t"}), HasSubstr("add --rendezvous"));
  EXPECT_THAT(refusal({"--nnodes", "2", "--master-port", "1", "t"}), HasSubstr("add --rendezvous"));
  EXPECT_THAT(refusal({"--nnodes", "2", "--rdzv-endpoint", "a:0", "t"}), HasSubstr("need a port"));
  EXPECT_EQ(parsed({"--rendezvous", "file:///shared", "t"}).rendezvous, std::nullopt) << "one node";
}

TEST(Complete, JobsThatMeetInOneFolderHaveIds) {
  EXPECT_EQ(parsed({"t"}).rendezvous_id, "job");
  EXPECT_EQ(parsed({"--rendezvous-id", "a-7.x_", "t"}).rendezvous_id, "a-7.x_");
  EXPECT_EQ(parsed({"--rdzv_id=100", "t"}).rendezvous_id, "100");
  for (const std::string& wrong : {std::string("../a"), std::string("a b"), std::string(65, 'a')}) {
    EXPECT_THAT(refusal({"--rdzv-id", wrong, "t"}), HasSubstr("up to 64 letters")) << wrong;
  }
}

TEST(Complete, HalvesOfAnEndpointAreJoinedInAnyOrder) {
  const test::Line tail{"--nnodes", "2", "t"};
  const auto url = [&](test::Line line) {
    line.insert(line.end(), tail.begin(), tail.end());
    return to_url(parsed(line).rendezvous.value());
  };
  EXPECT_EQ(url({"--master-addr", "a", "--master-port", "7"}), "tcp://a:7");
  EXPECT_EQ(url({"--master-port", "7", "--master-addr", "a"}), "tcp://a:7");
  EXPECT_EQ(url({"--master-addr", "a"}), "tcp://a:29500");
}

TEST(Complete, TheEnvironmentSaysWhereNodesMeetIfNothingElseDoes) {
  const test::Line environment{"MASTER_ADDR=a", "MASTER_PORT=7", "WORLD_SIZE=2", "RANK=1"};
  const LaunchOptions options = parsed({"--nproc-per-node", "3", "t"}, environment);
  EXPECT_EQ(to_url(options.rendezvous.value()), "tcp://a:7");
  EXPECT_EQ(options.nnodes, 2);
  EXPECT_EQ(options.node_rank, 1);
  EXPECT_EQ(options.np, 6);
  EXPECT_EQ(parsed({"-np", "4", "t"}, environment).rendezvous, std::nullopt);
  EXPECT_EQ(parsed({"-H", "b:2", "t"}, environment).rendezvous, std::nullopt);
  EXPECT_THAT(refusal({"t"}, {"MASTER_ADDR=a", "WORLD_SIZE=2", "RANK=2"}),
              StartsWith("environment: RANK"));
}

TEST(Complete, ShownRanksAreRanksOfTheJob) {
  EXPECT_THAT(parsed({"-np", "4", "--ranks", "3,0-1", "t"}).shown_ranks, ElementsAre(0, 1, 3));
  EXPECT_THAT(refusal({"-np", "4", "--ranks", "4", "t"}), HasSubstr("are 0 to 3"));
  for (const char* wrong : {"", "a", "3-1", "-1", "1,,2", "0-65536"}) {
    EXPECT_THAT(refusal({"--ranks", wrong, "t"}), HasSubstr("0-3,8")) << wrong;
  }
}

TEST(Complete, VariablesHaveAnyName) {
  EXPECT_THAT(
      parsed({"-x", "http_proxy", "-x", "_a1=2", "t"}).variables,
      ElementsAre(ForwardedVariable{"http_proxy", std::nullopt}, ForwardedVariable{"_a1", "2"}));
  for (const char* wrong : {"", "1a", "a-b", "a b=1", "a;b", "=1"}) {
    EXPECT_THAT(refusal({"-x", wrong, "t"}), HasSubstr("letters, digits and underscores")) << wrong;
  }
  EXPECT_THAT(refusal({"-x", "HORARUN_TOKEN=secret", "t"}),
              AllOf(HasSubstr("horarun's own"), testing::Not(HasSubstr("secret"))));
}

TEST(Complete, AFlagWinsOverItsVariable) {
  EXPECT_THAT(refusal({"t"}, {"HORA_TIMEOUT=soon"}), StartsWith("environment: HORA_TIMEOUT="));
  EXPECT_EQ(parsed({"--timeout", "9", "t"}, {"HORA_TIMEOUT=soon"}).settings.size(), 1u);
  EXPECT_THAT(refusal({"t"}, {"HORA_TIMOUT=1"}), HasSubstr("did you mean HORA_TIMEOUT"));
  EXPECT_THAT(parsed({"-x", "HORA_TIMEOUT=9", "--ranks-per-node", "2", "t"}).settings,
              ElementsAre(SettingAssignment{"HORA_TIMEOUT", "9"},
                          SettingAssignment{"HORA_RANKS_PER_NODE", "2"}));
}

TEST(Complete, WithoutAProgramThereIsNothingToRun) {
  EXPECT_THAT(refusal({"-np", "4"}), HasSubstr("no program is given"));
  EXPECT_EQ(parsed({"--diagnose", "/d"}).action, Action::diagnose);
  EXPECT_EQ(parsed({"--diagnose", "/d"}).diagnose_folder, "/d");
  EXPECT_EQ(parsed({"-np", "nonsense", "--help"}).action, Action::help);
  EXPECT_EQ(parsed({"-v"}).action, Action::version);
  EXPECT_EQ(parsed({"--completion", "bash"}).action, Action::completion);
  EXPECT_THAT(refusal({"--completion", "fish"}), HasSubstr("expected bash"));
  const LaunchOptions check = parsed({"--check-build", "--mpirun", "/m", "-np", "nonsense"});
  EXPECT_EQ(check.action, Action::check_build);
  EXPECT_EQ(check.mpirun, "/m");
}

}  // namespace
}  // namespace hora::launch
