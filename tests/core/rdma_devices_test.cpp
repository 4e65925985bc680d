#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <string>

#include "core/base/process.h"
#include "tests/support/temporary_folder.h"

namespace hora::internal {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

/// A folder as the kernel shows RDMA devices.
class RdmaDevices : public testing::Test {
 protected:
  void add(const std::string& device, const std::string& port, const std::string& state) const {
    const std::filesystem::path of_port = folder_.file(device + "/ports/" + port);
    std::filesystem::create_directories(of_port);
    std::ofstream(of_port / "state") << state << '\n';
  }
  std::filesystem::path devices() const { return folder_.path(); }

  const test::TemporaryFolder folder_;
};

TEST_F(RdmaDevices, ActivePortsAreListedInOrder) {
  add("mlx5_1", "1", "4: ACTIVE");
  add("mlx5_0", "2", "4: ACTIVE");
  add("mlx5_0", "1", "1: DOWN");
  add("mlx5_2", "1", "2: INIT");
  std::filesystem::create_directories(folder_.file("without_ports"));
  EXPECT_THAT(active_rdma_ports(devices()), ElementsAre("mlx5_0 port 2", "mlx5_1 port 1"));
}

TEST_F(RdmaDevices, WithoutTheFolderThereAreNone) {
  EXPECT_THAT(active_rdma_ports(devices()), IsEmpty());
  EXPECT_THAT(active_rdma_ports(folder_.file("missing")), IsEmpty());
}

}  // namespace
}  // namespace hora::internal
