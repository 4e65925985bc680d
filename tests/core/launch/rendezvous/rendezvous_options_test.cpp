#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "core/launch/rendezvous/rendezvous.h"

namespace hora::launch {
namespace {

using testing::HasSubstr;

TEST(RendezvousOptions, AreCheckedBeforeAnythingIsTried) {
  RendezvousOptions options;
  options.nodes = 4;
  EXPECT_TRUE(check(options));
  options.node_rank = 3;
  EXPECT_TRUE(check(options));
  for (const int rank : {4, -1}) {
    options.node_rank = rank;
    EXPECT_THAT(check(options).error(), HasSubstr("node ranks are 0 to 3"));
  }
  options.node_rank.reset();
  options.nodes = 0;
  EXPECT_THAT(check(options).error(), HasSubstr("--nnodes 0"));
  options.nodes = 1;
  options.ranks = 0;
  EXPECT_THAT(check(options).error(), HasSubstr("--nproc-per-node 0"));
  options.ranks = 1;
  for (const char* job : {"", "../a", "a/b", ".a", "a b"}) {
    options.job = job;
    EXPECT_THAT(check(options).error(), HasSubstr("--rendezvous-id"));
  }
  options.job = "train-3_b.2";
  EXPECT_TRUE(check(options));
}

}  // namespace
}  // namespace hora::launch
