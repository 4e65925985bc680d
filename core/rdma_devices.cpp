#include "core/rdma_devices.h"

#include <system_error>

namespace hora::internal {

bool has_rdma_device(const std::filesystem::path& devices) {
  std::error_code error;
  const std::filesystem::directory_iterator found(devices, error);
  return !error && found != std::filesystem::directory_iterator{};
}

}  // namespace hora::internal
