/// Two devices of LibTorch beside the CPU, on any machine: its PrivateUse1, whose tensors lie in
/// the host's memory, and whose operations are the CPU's, with their bits. Whatever would take such
/// a tensor for one on the CPU fails; backward() has a thread for each, as for GPUs.
#pragma once

#include <c10/core/Device.h>

namespace hora::internal::test {

inline constexpr c10::DeviceIndex other_devices = 2;

/// `index`: below other_devices.
inline c10::Device other_device(c10::DeviceIndex index) {
  return {c10::DeviceType::HPU, index};
}

}  // namespace hora::internal::test
