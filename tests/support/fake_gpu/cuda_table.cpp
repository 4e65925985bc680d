#include <cstring>
#include <functional>

#include "tests/support/fake_gpu/fake_device.h"

namespace hora::internal::test {
namespace {

cudaError_t allocate(FakeDevice& device, MemoryKind kind, void** data, std::size_t bytes) {
  *data = bytes == 0 ? nullptr : device.memory().allocate(kind, bytes);
  return cudaSuccess;
}

template <MemoryKind kind>
cudaError_t release(FakeDevice& device, void* data) {
  if (data == nullptr) return cudaSuccess;
  device.synchronize_all();
  if (device.memory().in_use(data)) {
    device.fault("freeing memory that work not yet on its stream will use");
    return cudaErrorIllegalAddress;
  }
  if (device.memory().release(kind, data)) return cudaSuccess;
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
  if (error == cudaErrorMemoryAllocation) return "out of memory";
  return error == cudaErrorInvalidValue ? "invalid argument" : "a fake error";
}

cudaError_t ctx_get_current(FakeDevice& device, CUcontext* context) {
  static int any = 0;
  *context = device.has_current() ? reinterpret_cast<CUcontext>(&any) : nullptr;
  return cudaSuccess;
}

}  // namespace

CudaFunctions cuda_functions(FakeDevice& device) {
  // `always`: takes place even where the script says that it fails.
  const auto call = [&device](const char* name, auto body, bool always = false) {
    device.script().add(name);
    return [=, &device](auto... arguments) {
      const cudaError_t error = device.begin(name);
      if (error != cudaSuccess && !always) return device.end(error);
      const cudaError_t done = std::invoke(body, device, arguments...);
      return device.end(error != cudaSuccess ? error : done);
    };
  };
  const auto released = [&](const char* name, auto body) { return call(name, body, true); };
  using Device = FakeDevice;
  device.script().add("get_last_error");
  CudaFunctions table;
  table.get_error_string = text_of;
  table.get_last_error = [&device] {
    device.script().begin("get_last_error");
    return device.take_last_error();
  };
  table.get_device_count = call("get_device_count", &Device::get_device_count);
  table.get_device = call("get_device", &Device::get_device);
  table.set_device = call("set_device", &Device::set_device);
  table.ctx_get_current = [get = call("ctx_get_current", ctx_get_current)](CUcontext* context) {
    return static_cast<CUresult>(get(context));
  };
  table.device_synchronize = call("device_synchronize", &Device::device_synchronize);
  table.get_device_properties = call("get_device_properties", &Device::get_device_properties);
  table.device_get_pci_bus_id = call("device_get_pci_bus_id", &Device::device_get_pci_bus_id);
  table.stream_create = call("stream_create", &Device::stream_create);
  table.stream_destroy = released("stream_destroy", &Device::stream_destroy);
  table.stream_synchronize = call("stream_synchronize", &Device::stream_synchronize);
  table.stream_wait_event = call("stream_wait_event", &Device::stream_wait_event);
  table.stream_is_capturing = call("stream_is_capturing", &Device::stream_is_capturing);
  table.thread_exchange_stream_capture_mode =
      call("thread_exchange_stream_capture_mode", &Device::exchange_capture_mode);
  table.event_create = call("event_create", &Device::event_create);
  table.event_destroy = released("event_destroy", &Device::event_destroy);
  table.event_record = call("event_record", &Device::event_record);
  table.event_query = call("event_query", &Device::event_query);
  table.event_synchronize = call("event_synchronize", &Device::event_synchronize);
  table.event_elapsed_time = call("event_elapsed_time", &Device::event_elapsed_time);
  table.host_alloc = call("host_alloc", [](Device& on, void** data, std::size_t bytes, unsigned) {
    return allocate(on, MemoryKind::pinned, data, bytes);
  });
  table.free_host = released("free_host", release<MemoryKind::pinned>);
  table.malloc = call("malloc", [](Device& on, void** data, std::size_t bytes) {
    return on.is_current("cudaMalloc") ? allocate(on, MemoryKind::device, data, bytes)
                                       : cudaErrorInvalidDevice;
  });
  table.free = released("free", release<MemoryKind::device>);
  table.mem_pool_create = call("mem_pool_create", &Device::mem_pool_create);
  table.mem_pool_destroy = released("mem_pool_destroy", &Device::mem_pool_destroy);
  table.mem_pool_set_attribute = call("mem_pool_set_attribute", &Device::mem_pool_set_attribute);
  table.mem_pool_trim_to = call("mem_pool_trim_to", &Device::mem_pool_trim_to);
  table.malloc_from_pool_async = call("malloc_from_pool_async", &Device::malloc_from_pool_async);
  table.free_async = released("free_async", &Device::free_async);
  table.memcpy_async = call("memcpy_async", copy_bytes);
  table.memset_async = call("memset_async", set_bytes);
  table.batched_copy = call("batched_copy", copy_pieces);
  table.device_reduce = call("device_reduce", reduce_memory);
  table.batched_update = call("batched_update", update_pieces);
  return table;
}

}  // namespace hora::internal::test
