#include <cstdio>
#include <string>

#include "tests/support/fake_gpu/cuda_table.h"

namespace hora::internal::test {
namespace {

/// Devices of one process: the world's GPUs before this one, this one, then the options' peers.
const FakePeer* peer_at(const FakeDevice& device, int index) {
  const int peer = index - device.index() - 1;
  return peer >= 0 && peer < static_cast<int>(device.peers().size())
             ? &device.peers()[static_cast<std::size_t>(peer)]
             : nullptr;
}

cudaError_t find_by_bus_id(const FakeDevice& device, const std::string& bus_id, int& index) {
  if (bus_id == device.bus_id()) {
    index = device.index();
    return cudaSuccess;
  }
  for (std::size_t i = 0; i < device.peers().size(); ++i) {
    if (device.peers()[i].bus_id == bus_id) {
      index = device.index() + static_cast<int>(i) + 1;
      return cudaSuccess;
    }
  }
  return cudaErrorInvalidDevice;
}

cudaError_t p2p_attribute(const FakeDevice& device, cudaDeviceP2PAttr attribute, int index,
                          int& value) {
  const FakePeer* peer = peer_at(device, index);
  if (!peer) return cudaErrorInvalidDevice;
  switch (attribute) {
    case cudaDevP2PAttrPerformanceRank:
      value = peer->performance_rank;
      return cudaSuccess;
    case cudaDevP2PAttrNativeAtomicSupported:
      value = peer->native_atomics ? 1 : 0;
      return cudaSuccess;
    default:
      return cudaErrorInvalidValue;
  }
}

}  // namespace

void add_peers(CudaFunctions& table, FakeDevice& device) {
  table.get_device_count = [&device](int* count) {
    return made(device, "get_device_count", [&] {
      *count = device.index() + 1 + static_cast<int>(device.peers().size());
      return cudaSuccess;
    });
  };
  table.get_device_properties = [&device](cudaDeviceProp* properties, int index) {
    return made(device, "get_device_properties", [&] {
      if (index != device.index()) return cudaErrorInvalidDevice;
      *properties = {};
      properties->uuid.bytes[0] = static_cast<char>(device.number() + 1);
      return cudaSuccess;
    });
  };
  table.device_get_pci_bus_id = [&device](char* id, int length, int) {
    return made(device, "device_get_pci_bus_id", [&] {
      std::snprintf(id, static_cast<std::size_t>(length), "%s", device.bus_id().c_str());
      return cudaSuccess;
    });
  };
  table.device_get_by_pci_bus_id = [&device](int* index, const char* id) {
    return made(device, "device_get_by_pci_bus_id",
                [&] { return find_by_bus_id(device, id, *index); });
  };
  table.device_can_access_peer = [&device](int* can, int from, int to) {
    return made(device, "device_can_access_peer", [&] {
      const FakePeer* peer = peer_at(device, to);
      if (from != device.index() || !peer) return cudaErrorInvalidDevice;
      *can = peer->access ? 1 : 0;
      return cudaSuccess;
    });
  };
  table.device_get_p2p_attribute = [&device](int* value, cudaDeviceP2PAttr attribute, int from,
                                             int to) {
    return made(device, "device_get_p2p_attribute", [&] {
      return from == device.index() ? p2p_attribute(device, attribute, to, *value)
                                    : cudaErrorInvalidDevice;
    });
  };
}

}  // namespace hora::internal::test
