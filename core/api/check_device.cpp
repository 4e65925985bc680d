#include "core/api/check_device.h"

#include <hora/error.h>

#include "core/enumerators.h"

namespace hora {

void check_device(const EngineParts& parts, const Device& device, const std::string& what,
                  const std::string& tensor) {
  const auto text = [](const Device& d) {
    return std::string(name_of(d.kind)) + ":" + std::to_string(d.index);
  };
  const auto refuse = [&](const std::string& why) {
    throw Error(ErrorCode::invalid_argument, what + " is on " + text(device) + ", and " + why,
                parts.rank, tensor);
  };
  if (!is_enumerator(device.kind)) {
    refuse("the device kind number " + std::to_string(static_cast<int>(device.kind)) +
           " is none of hora's (see hora::DeviceKind)");
  }
  if (!parts.device) refuse("this rank has a data path for the CPU only");
  if (device.index != parts.device_index) {
    refuse("this rank works on " + text({device.kind, parts.device_index}) +
           " alone: one device a process, see hora::local_device()");
  }
}

}  // namespace hora
