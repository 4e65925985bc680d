#include <gtest/gtest.h>
#include <unistd.h>

#include "core/base/process.h"

namespace hora::internal {
namespace {

TEST(ProcessIdentity, NamesRankHostAndPid) {
  EXPECT_EQ(to_string(ProcessIdentity{3, "node7", 4242}), "rank 3 (host node7, pid 4242)");
}

TEST(ProcessIdentity, IsThisProcess) {
  const ProcessIdentity own = identity_of_process(5);
  EXPECT_EQ(own.rank, 5);
  EXPECT_EQ(own.pid, ::getpid());
  EXPECT_EQ(own.host, host_name());
  EXPECT_FALSE(own.host.empty());
}

TEST(ProcessIdentity, HasTheHostsNameOfHorarun) {
  ::setenv(kHostVariable, "10.0.0.7", 1);
  EXPECT_EQ(identity_of_process(0).host, "10.0.0.7");
  ::unsetenv(kHostVariable);
}

}  // namespace
}  // namespace hora::internal
