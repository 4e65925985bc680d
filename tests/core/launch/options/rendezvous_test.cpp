#include "core/launch/options/rendezvous.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <vector>

namespace hora::launch {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::StartsWith;

RendezvousPlace at(const std::string& host, std::uint16_t port) {
  return {.host = host, .port = port, .folder = {}};
}

TEST(RendezvousPlace, IsAnAddressOrAFolder) {
  EXPECT_EQ(parse_rendezvous("tcp://a:29400"), at("a", 29400));
  EXPECT_EQ(parse_rendezvous("tcp://10.0.0.1:1/"), at("10.0.0.1", 1));
  EXPECT_EQ(parse_rendezvous("tcp://[fe80::1]:65535"), at("fe80::1", 65535));
  EXPECT_EQ(parse_rendezvous("file:///shared/job 1")->folder, "/shared/job 1");
}

TEST(RendezvousPlace, UrlsAreWrittenAsTheyAreRead) {
  for (const char* url : {"tcp://a:29400", "tcp://[fe80::1]:1", "file:///shared/job"}) {
    EXPECT_EQ(to_url(parse_rendezvous(url).value()), url);
  }
}

TEST(RendezvousPlace, OtherUrlsAreErrors) {
  for (const char* url :
       {"", "a:1", "http://a:1", "tcp://a", "tcp://:1", "tcp://a:0", "tcp://a:65536", "tcp://a:x",
        "tcp://-o:1", "tcp://a b:1", "tcp://fe80::1:1", "tcp://[fe80::1", "file://host/x",
        "file://", "file://x", "tcp://a:1/x"}) {
    EXPECT_FALSE(parse_rendezvous(url)) << url;
  }
}

TEST(RendezvousPlace, EndpointsAreTorchruns) {
  EXPECT_EQ(parse_endpoint("a:1"), at("a", 1));
  EXPECT_EQ(parse_endpoint("a"), at("a", 29400));
  EXPECT_EQ(parse_endpoint("localhost:0"), at("localhost", 0));
  EXPECT_EQ(parse_endpoint("[::1]:5"), at("::1", 5));
  EXPECT_EQ(parse_endpoint("[::1]"), at("::1", 29400));
  EXPECT_EQ(parse_endpoint("tcp://a:7"), at("a", 7));
  EXPECT_FALSE(parse_endpoint("a:x"));
  EXPECT_FALSE(parse_endpoint(""));
}

using Environment = std::vector<const char*>;

TEST(RendezvousFromEnvironment, AsKubernetesOperatorsSetIt) {
  const Environment environment = {"PATH=/bin", "MASTER_ADDR=job-0", "MASTER_PORT=23456",
                                   "WORLD_SIZE=4", "RANK=3"};
  EXPECT_EQ(rendezvous_from_environment(environment).value(),
            (NodeInEnvironment{at("job-0", 23456), 4, 3}));
}

TEST(RendezvousFromEnvironment, NodesGoBeforeRanks) {
  const Environment environment = {"MASTER_ADDR=a", "WORLD_SIZE=16", "RANK=9", "NNODES=2",
                                   "NODE_RANK=1"};
  EXPECT_EQ(rendezvous_from_environment(environment).value(),
            (NodeInEnvironment{at("a", 29500), 2, 1}));
}

TEST(RendezvousFromEnvironment, NothingWhereSomethingIsMissing) {
  for (const Environment& environment :
       {Environment{}, Environment{"MASTER_ADDR=a"}, Environment{"MASTER_ADDR=a", "WORLD_SIZE=2"},
        Environment{"WORLD_SIZE=2", "RANK=0"},
        Environment{"MASTER_ADDR=", "WORLD_SIZE=2", "RANK=0"},
        Environment{"MASTER_ADDRESS=a", "WORLD_SIZE=2", "RANK=0"},
        Environment{"MASTER_ADDR=a", "NNODES=2", "RANK=0", nullptr}}) {
    EXPECT_EQ(rendezvous_from_environment(environment).value(), std::nullopt);
  }
}

TEST(RendezvousFromEnvironment, WrongValuesAreErrorsWithTheirVariable) {
  const auto error = [](Environment environment) {
    return rendezvous_from_environment(environment).error();
  };
  EXPECT_THAT(error({"MASTER_ADDR=a", "WORLD_SIZE=two", "RANK=0"}),
              StartsWith("WORLD_SIZE=\"two\""));
  EXPECT_THAT(error({"MASTER_ADDR=a", "WORLD_SIZE=2", "RANK=2"}),
              AllOf(StartsWith("RANK=\"2\""), HasSubstr("below WORLD_SIZE")));
  EXPECT_THAT(error({"MASTER_ADDR=a;b", "NNODES=2", "NODE_RANK=0"}), HasSubstr("a;b"));
  EXPECT_THAT(error({"MASTER_ADDR=a", "MASTER_PORT=0", "NNODES=2", "NODE_RANK=0"}),
              HasSubstr("MASTER_PORT"));
}

}  // namespace
}  // namespace hora::launch
