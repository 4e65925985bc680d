#include "core/rdma_devices.h"

#include <gtest/gtest.h>

#include <filesystem>

#include "tests/support/temporary_folder.h"

namespace hora::internal {
namespace {

TEST(RdmaDevices, AreWhatTheFolderLists) {
  const test::TemporaryFolder folder;
  EXPECT_FALSE(has_rdma_device(folder.file("none")));
  std::filesystem::create_directory(folder.file("infiniband"));
  EXPECT_FALSE(has_rdma_device(folder.file("infiniband")));
  std::filesystem::create_directory(folder.file("infiniband/mlx5_0"));
  EXPECT_TRUE(has_rdma_device(folder.file("infiniband")));
}

}  // namespace
}  // namespace hora::internal
