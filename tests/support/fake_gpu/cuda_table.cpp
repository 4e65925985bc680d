#include "tests/support/fake_gpu/cuda_table.h"

#include <cstdio>
#include <cstring>

namespace hora::internal::test {
namespace {

cudaError_t allocate(FakeDevice& device, MemoryKind kind, void** data, std::size_t bytes) {
  *data = bytes == 0 ? nullptr : device.memory().allocate(kind, bytes);
  return cudaSuccess;
}

cudaError_t release(FakeDevice& device, MemoryKind kind, void* data) {
  if (data == nullptr) {
    return cudaSuccess;
  }
  device.synchronize_all();
  if (device.memory().in_use(data)) {
    device.fault("freeing memory that work not yet on its stream will use");
    return cudaErrorIllegalAddress;
  }
  if (device.memory().release(kind, data)) {
    return cudaSuccess;
  }
  device.violation("freeing what was not allocated, or not by this kind of call");
  return cudaErrorInvalidValue;
}

/// The fault in the memory of a copy; null where there is none.
const char* wrong(FakeMemory& memory, void* target, const void* source, std::size_t bytes,
                  cudaMemcpyKind kind) {
  const auto on_device = [&](const void* data) { return memory.on_device(data, bytes); };
  const auto pinned = [&](const void* data) { return memory.pinned(data, bytes); };
  const bool target_is_device = on_device(target);
  const bool source_is_device = on_device(source);
  if (!target_is_device && !pinned(target)) {
    return "a copy's target is not in any block of device or pinned memory";
  }
  if (!source_is_device && !pinned(source)) {
    return "a copy's source is not in any block of device or pinned memory";
  }
  const bool to_device = kind == cudaMemcpyHostToDevice || kind == cudaMemcpyDeviceToDevice;
  const bool from_device = kind == cudaMemcpyDeviceToHost || kind == cudaMemcpyDeviceToDevice;
  if (bytes > 0 && kind != cudaMemcpyDefault &&
      (to_device != target_is_device || from_device != source_is_device)) {
    return "a copy's direction is not that of its memory";
  }
  return nullptr;
}

cudaError_t copy_bytes(FakeDevice& device, void* target, const void* source, std::size_t bytes,
                       cudaMemcpyKind kind, cudaStream_t stream) {
  if (const char* text = wrong(device.memory(), target, source, bytes, kind)) {
    device.violation(text);
    return cudaErrorInvalidValue;
  }
  return device.enqueue(
      stream, device.script().delay_of("memcpy_async"),
      [=, &device] {
        if (const char* text = wrong(device.memory(), target, source, bytes, kind)) {
          device.fault(text);
        } else if (bytes > 0) {
          std::memcpy(target, source, bytes);
        }
      },
      device.memory().use({{target, bytes}, {source, bytes}}));
}

cudaError_t set_bytes(FakeDevice& device, void* target, int value, std::size_t bytes,
                      cudaStream_t stream) {
  constexpr auto kOutside = "memset of what is not in any block of device memory";
  if (!device.memory().on_device(target, bytes)) {
    device.violation(kOutside);
    return cudaErrorInvalidValue;
  }
  return device.enqueue(
      stream, device.script().delay_of("memset_async"),
      [=, &device] {
        if (!device.memory().on_device(target, bytes)) {
          device.fault(kOutside);
        } else if (bytes > 0) {
          std::memset(target, value, bytes);
        }
      },
      device.memory().use({{target, bytes}}));
}

const char* text_of(cudaError_t error) {
  switch (error) {
    case cudaSuccess:
      return "no error";
    case cudaErrorMemoryAllocation:
      return "out of memory";
    case cudaErrorInvalidValue:
      return "invalid argument";
    case cudaErrorInvalidResourceHandle:
      return "invalid resource handle";
    case cudaErrorIllegalAddress:
      return "an illegal memory access was encountered";
    default:
      return "a fake error";
  }
}

void add_memory(CudaFunctions& table, FakeDevice& device) {
  table.host_alloc = [&device](void** data, std::size_t bytes, unsigned) {
    return made(device, "host_alloc",
                [&] { return allocate(device, MemoryKind::pinned, data, bytes); });
  };
  table.free_host = [&device](void* data) {
    return released(device, "free_host", [&] { return release(device, MemoryKind::pinned, data); });
  };
  table.malloc = [&device](void** data, std::size_t bytes) {
    return made(device, "malloc", [&] {
      return !device.is_current("cudaMalloc") ? cudaErrorInvalidDevice
                                              : allocate(device, MemoryKind::device, data, bytes);
    });
  };
  table.free = [&device](void* data) {
    return released(device, "free", [&] { return release(device, MemoryKind::device, data); });
  };
  table.memcpy_async = [&device](void* target, const void* source, std::size_t bytes,
                                 cudaMemcpyKind kind, cudaStream_t stream) {
    return made(device, "memcpy_async",
                [&] { return copy_bytes(device, target, source, bytes, kind, stream); });
  };
  table.memset_async = [&device](void* target, int value, std::size_t bytes, cudaStream_t stream) {
    return made(device, "memset_async",
                [&] { return set_bytes(device, target, value, bytes, stream); });
  };
}

void add_streams(CudaFunctions& table, FakeDevice& device) {
  table.stream_create = [&device](cudaStream_t* stream, unsigned, int) {
    return made(device, "stream_create", [&] { return device.create_stream(stream); });
  };
  table.stream_destroy = [&device](cudaStream_t stream) {
    return released(device, "stream_destroy", [&] { return device.destroy_stream(stream); });
  };
  table.stream_synchronize = [&device](cudaStream_t stream) {
    return made(device, "stream_synchronize", [&] { return device.synchronize_stream(stream); });
  };
  table.stream_wait_event = [&device](cudaStream_t stream, cudaEvent_t event, unsigned) {
    return made(device, "stream_wait_event", [&] { return device.wait_event(stream, event); });
  };
  table.stream_is_capturing = [&device](cudaStream_t stream, cudaStreamCaptureStatus* status) {
    return made(device, "stream_is_capturing", [&] { return device.is_capturing(stream, status); });
  };
  table.thread_exchange_stream_capture_mode = [&device](cudaStreamCaptureMode* mode) {
    return made(device, "thread_exchange_stream_capture_mode", [&] {
      device.exchange_capture_mode(mode);
      return cudaSuccess;
    });
  };
  table.event_create = [&device](cudaEvent_t* event, unsigned flags) {
    const bool timing = (flags & cudaEventDisableTiming) == 0;
    return made(device, "event_create", [&] { return device.create_event(event, timing); });
  };
  table.event_destroy = [&device](cudaEvent_t event) {
    return released(device, "event_destroy", [&] { return device.destroy_event(event); });
  };
  table.event_record = [&device](cudaEvent_t event, cudaStream_t stream) {
    return made(device, "event_record", [&] { return device.record_event(event, stream); });
  };
  table.event_query = [&device](cudaEvent_t event) {
    return made(device, "event_query", [&] { return device.query_event(event); });
  };
  table.event_synchronize = [&device](cudaEvent_t event) {
    return made(device, "event_synchronize", [&] { return device.synchronize_event(event); });
  };
  table.event_elapsed_time = [&device](float* milliseconds, cudaEvent_t from, cudaEvent_t to) {
    return made(device, "event_elapsed_time",
                [&] { return device.elapsed_time(milliseconds, from, to); });
  };
}

}  // namespace

CudaFunctions cuda_functions(FakeDevice& device) {
  CudaFunctions table;
  table.get_error_string = text_of;
  table.get_last_error = [&device] {
    device.script().begin("get_last_error");
    return device.take_last_error();
  };
  table.get_device = [&device](int* index) {
    *index = device.current();
    return made(device, "get_device", [] { return cudaSuccess; });
  };
  table.ctx_get_current = [&device](CUcontext* context) {
    const cudaError_t error = device.begin("ctx_get_current");
    static int any = 0;
    *context = device.has_current() ? reinterpret_cast<CUcontext>(&any) : nullptr;
    return static_cast<CUresult>(error);
  };
  table.device_synchronize = [&device] {
    return made(device, "device_synchronize", [&] { return device.synchronize_device(); });
  };
  table.set_device = [&device](int index) {
    return made(device, "set_device", [&] { return device.choose(index); });
  };
  table.get_device_count = [&device](int* count) {
    return made(device, "get_device_count", [&] {
      *count = device.index() + 1 + device.peers();
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
  add_streams(table, device);
  add_kernels(table, device);
  add_memory(table, device);
  add_pools(table, device);
  return table;
}

}  // namespace hora::internal::test
