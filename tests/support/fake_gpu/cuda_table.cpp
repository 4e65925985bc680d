#include <algorithm>
#include <cstring>
#include <functional>
#include <utility>
#include <variant>

#include "ops/cuda/kernels.h"
#include "ops/local/kernels.h"
#include "tests/support/fake_gpu/batched_copy.h"
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
    return device.fault("freeing memory that work not yet on its stream will use");
  }
  if (device.memory().release(kind, data)) return cudaSuccess;
  return device.violation("freeing what was not allocated, or not by this kind of call");
}

/// Enqueues `work`, which touches `ranges`. `wrong()` says what is the matter with them, null for
/// nothing: now, and when it runs.
template <class Wrong, class Work>
cudaError_t enqueue(FakeDevice& device, cudaStream_t stream, const std::vector<MemoryRange>& ranges,
                    Wrong wrong, Work work) {
  if (const char* const text = wrong()) return device.violation(text);
  const auto checked = [&device, wrong, work]() mutable {
    if (const char* const text = wrong()) {
      device.fault(text);
    } else {
      work();
    }
  };
  return device.enqueue(stream, checked, device.memory().use(ranges));
}

void copy_memory(void* target, const void* source, std::size_t bytes) {
  std::copy_n(static_cast<const std::byte*>(source), bytes, static_cast<std::byte*>(target));
}

cudaError_t copy_bytes(FakeDevice& device, void* target, const void* source, std::size_t bytes,
                       cudaMemcpyKind kind, cudaStream_t stream) {
  const auto wrong = [=, &memory = device.memory()]() -> const char* {
    const bool to_device = memory.on_device({{target, bytes}});
    const bool from_device = memory.on_device({{source, bytes}});
    if ((!to_device && !memory.pinned({{target, bytes}})) ||
        (!from_device && !memory.pinned({{source, bytes}}))) {
      return "a copy's memory is not in any block of device or pinned memory";
    }
    const bool is_said =
        kind == cudaMemcpyDefault ||
        (to_device == (kind == cudaMemcpyHostToDevice || kind == cudaMemcpyDeviceToDevice) &&
         from_device == (kind == cudaMemcpyDeviceToHost || kind == cudaMemcpyDeviceToDevice));
    return bytes == 0 || is_said ? nullptr : "a copy's direction is not that of its memory";
  };
  return enqueue(device, stream, {{target, bytes}, {source, bytes}}, wrong,
                 [=] { copy_memory(target, source, bytes); });
}

/// As wrong() of enqueue(): `outside` where the ranges are not on the device.
auto outside_of(const FakeDevice& device, std::vector<MemoryRange> ranges, const char* outside) {
  return [&memory = device.memory(), ranges = std::move(ranges), outside] {
    return memory.on_device(ranges) ? nullptr : outside;
  };
}

cudaError_t set_bytes(FakeDevice& device, void* target, int value, std::size_t bytes,
                      cudaStream_t stream) {
  const std::vector<MemoryRange> ranges = {{target, bytes}};
  const auto wrong =
      outside_of(device, ranges, "memset of what is not in any block of device memory");
  return enqueue(device, stream, ranges, wrong, [=] {
    std::fill_n(static_cast<std::byte*>(target), bytes, static_cast<std::byte>(value));
  });
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

/// Launches `work`, a kernel named `what`, where its arguments are valid.
template <class Work>
cudaError_t launch(FakeDevice& device, const std::string& what, bool is_valid,
                   const std::vector<MemoryRange>& ranges, cudaStream_t stream, Work work) {
  if (!device.is_current("a kernel was launched")) return cudaErrorInvalidResourceHandle;
  if (!is_valid) return device.violation(what + " of types or addresses that it does not take");
  const auto wrong =
      outside_of(device, ranges, "a kernel's memory is not in any block of the device's");
  return enqueue(device, stream, ranges, wrong, work);
}

cudaError_t copy_pieces(FakeDevice& device, const BatchedCopy& copy, cudaStream_t stream) {
  const std::vector<CopyPiece> pieces(copy.pieces.begin(), copy.pieces.end());
  std::vector<MemoryRange> ranges = {{copy.flag, copy.flag ? size_of(copy.target_type) : 0}};
  for (const CopyPiece& piece : pieces) {
    const auto elements = static_cast<std::size_t>(piece.elements);
    ranges.emplace_back(piece.target, elements * size_of(copy.target_type));
    if (piece.source) ranges.emplace_back(piece.source, elements * size_of(copy.source_type));
  }
  return launch(device, "a batched copy", valid(copy), ranges, stream,
                [owned = copy, pieces]() mutable {
                  owned.pieces = pieces;
                  run(owned);
                });
}

/// True where there are inputs, not too many, and the memory is aligned to the elements.
bool takes(const DeviceReduction& reduction) {
  const auto aligned = [&](const std::byte* memory) {
    return memory != nullptr &&
           reinterpret_cast<std::uintptr_t>(memory) % size_of(reduction.type) == 0;
  };
  return reduction.op != ReduceOp::adasum && !reduction.inputs.empty() &&
         reduction.inputs.size() <= DeviceReduction::kMaximumInputs && reduction.count >= 0 &&
         aligned(reduction.output) && std::ranges::all_of(reduction.inputs, aligned);
}

/// As ops/cuda/functions.h says: it names the host's kernels as the model.
cudaError_t reduce_memory(FakeDevice& device, const DeviceReduction& given, cudaStream_t stream) {
  const std::vector<const std::byte*> inputs(given.inputs.begin(), given.inputs.end());
  const auto count = static_cast<std::size_t>(given.count);
  std::vector<MemoryRange> ranges = {{given.output, count * size_of(given.type)}};
  for (const std::byte* const input : inputs) ranges.emplace_back(input, ranges.front().second);
  return launch(device, "a reduction", takes(given), ranges, stream, [=] {
    reduce(given.type, given.op, inputs, {&given.output, 1}, count, {.post = given.scale});
  });
}

bool takes(const BatchedUpdate& update) {
  const int states = std::visit([](const auto& step) { return states_of(step); }, update.step);
  return (update.type == DataType::float32 || update.type == DataType::float64) &&
         can_be_updated(update.pieces, size_of(update.type), states);
}

cudaError_t update_pieces(FakeDevice& device, const BatchedUpdate& given, cudaStream_t stream) {
  const std::vector<UpdatePiece> pieces(given.pieces.begin(), given.pieces.end());
  std::vector<MemoryRange> ranges;
  for (const UpdatePiece& piece : pieces) {
    const std::size_t bytes = static_cast<std::size_t>(piece.elements) * size_of(given.type);
    ranges.insert(ranges.end(), {{piece.parameter, bytes}, {piece.gradient, bytes}});
    for (const void* const state : piece.state) {
      if (state != nullptr) ranges.emplace_back(state, bytes);
    }
  }
  return launch(
      device, "an update", takes(given), ranges, stream,
      [pieces, type = given.type, step = given.step] {
        for (const UpdatePiece& piece : pieces) {
          const std::byte* const gradients[] = {static_cast<const std::byte*>(piece.gradient)};
          UpdateMemory memory{.parameter = static_cast<std::byte*>(piece.parameter),
                              .gradients = gradients};
          std::ranges::transform(piece.state, memory.state,
                                 [](void* state) { return static_cast<std::byte*>(state); });
          const auto elements = static_cast<std::size_t>(piece.elements);
          std::visit([&](const auto& values) { update(type, values, memory, 0, elements); }, step);
        }
      });
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
