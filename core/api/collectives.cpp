#include <hora/error.h>
#include <hora/objects.h>
#include <hora/printable.h>
#include <hora/process_set.h>
#include <spdlog/fmt/fmt.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "core/api/internals.h"
#include "core/api/results.h"
#include "core/base/checked.h"
#include "core/base/text.h"

namespace hora {

using namespace internal;
namespace {

// Checks of users' requests, and their conversion to the engine's form.

constexpr std::size_t kMaxNameBytes = 1024;
constexpr std::size_t kMaxDimensions = 64;

template <class... T>
[[noreturn]] void refuse(std::string_view name, fmt::format_string<T...> why, T&&... values) {
  throw Error(
      ErrorCode::invalid_argument,
      fmt::format("{}: {}", tensor_text(name), fmt::format(why, std::forward<T>(values)...)), -1,
      std::string(fitting(name, kMaxNameBytes)));
}

/// Bytes of a TensorView or a ConstTensorView; errors get its name.
std::size_t bytes_of(std::string_view name, const auto& view) {
  try {
    return view.bytes();
  } catch (const Error& error) {
    refuse(name, "{}", error.what());
  }
}

template <class Options>
std::chrono::milliseconds timeout_of(const Options& options) {
  if (options.timeout.count() < 0) {
    refuse(options.name, "a timeout of {} ms: give a positive one, or 0 for that of HORA_TIMEOUT",
           options.timeout.count());
  }
  return options.timeout;
}

/// `View`: a TensorView, or a ConstTensorView of what the engine does not write to.
template <class View, class Options>
Request of_tensor(const Context& context, const Options& options, const View& tensor,
                  OperationKind kind) {
  const std::string& name = options.name;
  check_name(name);
  if (tensor.shape.size() > kMaxDimensions) {
    refuse(name, "at most {} dimensions, this tensor has {}", kMaxDimensions, tensor.shape.size());
  }
  if (bytes_of(name, tensor) > 0 && tensor.data == nullptr) {
    refuse(name, "its data pointer is null, but its shape has {} elements", tensor.elements());
  }
  if (tensor.device != Device{}) {
    check_device(engine_of(context)->parts(), tensor.device, tensor_text(name), name);
  }
  auto* const data = const_cast<void*>(static_cast<const void*>(tensor.data));
  Request request{name, {}, static_cast<std::byte*>(data), tensor.stream};
  Signature& signature = request.signature;
  signature.kind = kind;
  signature.type = tensor.type;
  signature.device = tensor.device.kind;
  signature.shape = tensor.shape;
  request.timeout = timeout_of(options);
  if (!is_exchange(kind)) return request;
  request.bytes = tensor.bytes();
  if (signature.shape.empty() && kind != OperationKind::allgather) {
    refuse(name, "a scalar has no first dimension for {} to divide", name_of(kind));
  }
  if (signature.shape.empty()) signature.shape = {1};
  request.rows = {signature.shape.front()};
  // It is this rank's alone.
  if (extents_may_differ(kind)) signature.shape.front() = kAnyExtent;
  return request;
}

template <class Options>
void set_reduction(Request& request, const Options& options) {
  Signature& signature = request.signature;
  if (!is_enumerator(options.op)) {
    refuse(options.name, "the reduction number {} is none of hora's (see hora::ReduceOp)",
           static_cast<int>(options.op));
  }
  const bool scales = is_floating_point(signature.type);
  const std::string_view type = name_of(signature.type);
  if (options.op == ReduceOp::average && !scales) {
    refuse(options.name, "an average of {} is not defined: ask for ReduceOp::sum", type);
  }
  if (options.op == ReduceOp::adasum && !scales) {
    refuse(options.name, "Adasum of {} is not defined: it takes floating-point types", type);
  }
  const bool scaled = options.prescale != 1.0 || options.postscale != 1.0;
  if (scaled && (!scales || options.op == ReduceOp::adasum)) {
    refuse(options.name,
           "prescale and postscale are for sums, averages, minima, maxima and "
           "products of floating-point types, not for {} of {}",
           name_of(options.op), type);
  }
  if (!std::isfinite(options.prescale) || !std::isfinite(options.postscale)) {
    refuse(options.name, "prescale and postscale must be finite numbers");
  }
  signature.op = options.op;
  signature.prescale = options.prescale;
  signature.postscale = options.postscale;
}

/// The rows for each rank: those that are given, or all of them evenly.
std::vector<std::int64_t> splits_of(const AlltoallOptions& options, std::int64_t rows, int ranks) {
  const std::string& name = options.name;
  const std::vector<std::int64_t>& splits = options.splits;
  if (splits.empty()) {
    if (rows % ranks == 0) return std::vector(static_cast<std::size_t>(ranks), rows / ranks);
    refuse(name, "{} rows cannot be divided evenly among {} ranks: give splits", rows, ranks);
  }
  if (splits.size() != static_cast<std::size_t>(ranks)) {
    refuse(name, "{} splits for {} ranks: give one for each rank of the process set", splits.size(),
           ranks);
  }
  Checked sum = 0;
  for (std::size_t i = 0; i < splits.size(); ++i) {
    if (splits[i] < 0) refuse(name, "split {} is {} rows: give 0 or more", i, splits[i]);
    sum = sum + splits[i];
  }
  const bool fits = sum.at_most(std::numeric_limits<std::uint64_t>::max());
  if (!fits || sum.value() != static_cast<std::size_t>(rows)) {
    refuse(name, "the splits add up to {} rows, and the tensor has {}",
           fits ? std::to_string(sum.value()) : "2^64 or more", rows);
  }
  return splits;
}

const std::vector<int>& members(const Context& context, std::string_view name, ProcessSet set) {
  return engine_of(context)->running().sets().ranks_of(set, name);
}

/// All throw the errors of submitting calls (docs/failures.md).
Request request(const Context& context, const TensorView& tensor, const AllreduceOptions& options) {
  Request result = of_tensor(context, options, tensor, OperationKind::allreduce);
  set_reduction(result, options);
  return result;
}

Request request(const Context& context, const TensorView& tensor, const BroadcastOptions& options) {
  Request result = of_tensor(context, options, tensor, OperationKind::broadcast);
  const auto& ranks = members(context, options.name, options.process_set);
  if (!std::binary_search(ranks.begin(), ranks.end(), options.root)) {
    refuse(options.name, "root {} is no rank of process set {}, which has {} from {} to {}",
           options.root, options.process_set.number(), ranks.size(), ranks.front(), ranks.back());
  }
  result.signature.root = options.root;
  return result;
}

Request request(const Context&, const BarrierOptions& options) {
  check_name(options.name);
  Request result{.name = options.name, .signature = {}};
  result.signature = {.kind = OperationKind::barrier, .type = DataType::uint8, .shape = {0}};
  result.timeout = timeout_of(options);
  return result;
}

Request request(const Context& context, const ConstTensorView& tensor,
                const AllgatherOptions& options) {
  return of_tensor(context, options, tensor, OperationKind::allgather);
}

Request request(const Context& context, const ConstTensorView& tensor,
                const AlltoallOptions& options) {
  Request result = of_tensor(context, options, tensor, OperationKind::alltoall);
  const int ranks = static_cast<int>(members(context, options.name, options.process_set).size());
  result.rows = splits_of(options, tensor.shape.front(), ranks);
  return result;
}

Request request(const Context& context, const ConstTensorView& tensor,
                const ReduceScatterOptions& options) {
  Request result = of_tensor(context, options, tensor, OperationKind::reduce_scatter);
  if (options.op == ReduceOp::adasum) {
    refuse(options.name, "Adasum is for allreduce: its result is of the whole tensor");
  }
  set_reduction(result, options);
  return result;
}

void check_output(const Context& context, const Request& request, const TensorView& output,
                  ProcessSet set) {
  const Signature& signature = request.signature;
  if (output.type != signature.type) {
    refuse(request.name, "its output is of {}, and the result of {}", name_of(output.type),
           name_of(signature.type));
  }
  if (output.device.kind != signature.device) {
    refuse(request.name,
           "its output is on {}, and the result on {}: give memory on the input's device",
           name_of(output.device.kind), name_of(signature.device));
  }
  if (output.device != Device{}) {
    check_device(engine_of(context)->parts(), output.device,
                 "the output of " + tensor_text(request.name), std::string(request.name));
  }
  const std::size_t bytes = bytes_of(request.name, output);
  if (bytes > 0 && output.data == nullptr)
    refuse(request.name, "its output's data pointer is null");
  const auto begin = reinterpret_cast<std::uintptr_t>(output.data);
  const auto input = reinterpret_cast<std::uintptr_t>(request.data);
  if (bytes > 0 && request.bytes > 0 && begin < input + request.bytes && input < begin + bytes) {
    refuse(request.name, "its output overlaps its input: give memory apart");
  }
  if (signature.kind != OperationKind::reduce_scatter) return;
  const auto ranks = static_cast<int>(members(context, request.name, set).size());
  const int position = rank_in(context, set);
  if (position < 0) return;  // submit() reports that
  const std::int64_t rows = scattered_rows(request.rows.front(), ranks, position);
  const std::size_t result = static_cast<std::size_t>(rows) * signature.row_bytes();
  check_output_length(request.name, bytes, result, signature.type);
}

void run(const Context& context, Request&& r, ProcessSet set) {
  engine_of(context)->running().submit_and_wait(std::move(r), set);
}

Handle start(const Context& context, Request&& r, ProcessSet set) {
  const auto& engine = engine_of(context);
  return Access::handle(engine, engine->running().submit(std::move(r), set));
}

/// Where the result goes: memory of hora's, or `output`.
std::shared_ptr<ResultMemory> add_result(const Context& context, Request& r, ProcessSet set,
                                         const TensorView* output) {
  const auto& engine = engine_of(context);
  const EngineParts& parts = engine->parts();
  ResultForm form;
  form.view = {nullptr, r.signature.type, r.signature.shape, {}, r.stream};
  form.view.shape.front() = 0;
  if (output) {
    check_output(context, r, *output, set);
    form.name = std::string(r.name);
    form.output = {static_cast<std::byte*>(output->data), output->bytes()};
    form.view.stream = output->stream;
    if (output->stream != r.stream) r.output_stream = output->stream;
  }
  const bool is_on_host = r.signature.device == DeviceKind::cpu;
  if (!is_on_host) form.view.device = {r.signature.device, parts.device_index};
  std::unique_ptr<ResultMemory> memory;
  if (!is_on_host && engine->running().runs_on_device(r, set)) {
    memory = std::make_unique<DeviceResult>(*parts.device_heap, std::move(form));
  } else {
    memory = std::make_unique<HostResult>(engine->running().memory(), std::move(form),
                                          is_on_host ? nullptr : parts.device_heap);
  }
  // Keeps the engine alive as long as the memory. In a forked child neither is destroyed.
  std::shared_ptr<ResultMemory> shared(memory.release(), [engine](ResultMemory* result) {
    if (!engine->is_forked()) delete result;
  });
  r.result = shared;
  return shared;
}

Result run_exchange(const Context& context, Request r, ProcessSet set,
                    const TensorView* output = nullptr) {
  auto memory = add_result(context, r, set, output);
  run(context, std::move(r), set);
  memory->collect();
  return Access::result(std::move(memory));
}

ResultHandle start_exchange(const Context& context, Request r, ProcessSet set,
                            const TensorView* output = nullptr) {
  auto memory = add_result(context, r, set, output);
  return Access::result_handle(start(context, std::move(r), set), std::move(memory));
}

}  // namespace

void allreduce(const Context& context, const TensorView& tensor, const AllreduceOptions& options) {
  run(context, request(context, tensor, options), options.process_set);
}
Handle allreduce_async(const Context& context, const TensorView& tensor,
                       const AllreduceOptions& options) {
  return start(context, request(context, tensor, options), options.process_set);
}

void broadcast(const Context& context, const TensorView& tensor, const BroadcastOptions& options) {
  run(context, request(context, tensor, options), options.process_set);
}
Handle broadcast_async(const Context& context, const TensorView& tensor,
                       const BroadcastOptions& options) {
  return start(context, request(context, tensor, options), options.process_set);
}

void barrier(const Context& context, const BarrierOptions& options) {
  run(context, request(context, options), options.process_set);
}
Handle barrier_async(const Context& context, const BarrierOptions& options) {
  return start(context, request(context, options), options.process_set);
}

Result allgather(const Context& context, const ConstTensorView& tensor,
                 const AllgatherOptions& options) {
  return run_exchange(context, request(context, tensor, options), options.process_set);
}
ResultHandle allgather_async(const Context& context, const ConstTensorView& tensor,
                             const AllgatherOptions& options) {
  return start_exchange(context, request(context, tensor, options), options.process_set);
}

Result alltoall(const Context& context, const ConstTensorView& tensor,
                const AlltoallOptions& options) {
  return run_exchange(context, request(context, tensor, options), options.process_set);
}
ResultHandle alltoall_async(const Context& context, const ConstTensorView& tensor,
                            const AlltoallOptions& options) {
  return start_exchange(context, request(context, tensor, options), options.process_set);
}

Result reduce_scatter(const Context& context, const ConstTensorView& tensor,
                      const ReduceScatterOptions& options) {
  return run_exchange(context, request(context, tensor, options), options.process_set);
}
ResultHandle reduce_scatter_async(const Context& context, const ConstTensorView& tensor,
                                  const ReduceScatterOptions& options) {
  return start_exchange(context, request(context, tensor, options), options.process_set);
}

Result allgather_into(const Context& context, const ConstTensorView& tensor,
                      const TensorView& output, const AllgatherOptions& options) {
  return run_exchange(context, request(context, tensor, options), options.process_set, &output);
}
ResultHandle allgather_into_async(const Context& context, const ConstTensorView& tensor,
                                  const TensorView& output, const AllgatherOptions& options) {
  return start_exchange(context, request(context, tensor, options), options.process_set, &output);
}

Result alltoall_into(const Context& context, const ConstTensorView& tensor,
                     const TensorView& output, const AlltoallOptions& options) {
  return run_exchange(context, request(context, tensor, options), options.process_set, &output);
}
ResultHandle alltoall_into_async(const Context& context, const ConstTensorView& tensor,
                                 const TensorView& output, const AlltoallOptions& options) {
  return start_exchange(context, request(context, tensor, options), options.process_set, &output);
}

Result reduce_scatter_into(const Context& context, const ConstTensorView& tensor,
                           const TensorView& output, const ReduceScatterOptions& options) {
  return run_exchange(context, request(context, tensor, options), options.process_set, &output);
}
ResultHandle reduce_scatter_into_async(const Context& context, const ConstTensorView& tensor,
                                       const TensorView& output,
                                       const ReduceScatterOptions& options) {
  return start_exchange(context, request(context, tensor, options), options.process_set, &output);
}

int join(const Context& context, ProcessSet set) {
  return engine_of(context)->running().join(set);
}

void internal::check_name(const std::string& name) {
  if (name.size() > kMaxNameBytes || name.find('\0') != std::string::npos) {
    refuse(name, "a name has at most {} bytes and no zero byte, this one has {}", kMaxNameBytes,
           name.size());
  }
}

void internal::check_output_length(std::string_view name, std::size_t output, std::size_t result,
                                   DataType type) {
  if (output == result) return;
  refuse(name, "its output has {} elements, and the result {}: they must be as many",
         output / size_of(type), result / size_of(type));
}

void internal::check_device(const EngineParts& parts, const Device& device, const std::string& what,
                            const std::string& tensor) {
  const auto text = [](const Device& d) { return fmt::format("{}:{}", name_of(d.kind), d.index); };
  const auto refuse = [&](const std::string& why) {
    throw Error(ErrorCode::invalid_argument,
                fmt::format("{} is on {}, and {}", what, text(device), why), parts.rank, tensor);
  };
  if (!is_enumerator(device.kind)) {
    refuse(fmt::format("the device kind number {} is none of hora's (see hora::DeviceKind)",
                       static_cast<int>(device.kind)));
  }
  if (device.kind == DeviceKind::cpu) refuse("the CPU has index 0 alone");
  if (!parts.device) refuse("this rank has a data path for the CPU only");
  if (device.index != parts.device_index) {
    refuse(
        fmt::format("this rank works on {} alone: one device a process, see hora::local_device()",
                    text({device.kind, parts.device_index})));
  }
}

using namespace internal;
namespace {

using Bytes = std::vector<std::byte>;

std::span<const std::byte> as_bytes(std::string_view text) {
  return std::as_bytes(std::span(text.data(), text.size()));
}

std::string as_text(std::span<const std::byte> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

std::string part_name(const std::string& name, const char* part) {
  return name.empty() ? name : name + "." + part;
}

void check_object(std::span<const std::byte> object, const std::string& name) {
  check_name(part_name(name, "object"));
  if ((object.data() != nullptr || object.empty()) && object.size() <= kMaxBytes) return;
  throw Error(ErrorCode::invalid_argument,
              fmt::format("object {}: {} bytes at {}", in_quotes(name), object.size(),
                          object.data() ? "its address: at most 2^48" : "a null address"),
              -1, name);
}

}  // namespace

/// In two collectives: its length, then its bytes.
Bytes broadcast_object(const Context& context, std::span<const std::byte> object,
                       const BroadcastObjectOptions& options) {
  const bool sends = context.rank() == options.root;
  if (sends) check_object(object, options.name);
  BroadcastOptions part{.name = part_name(options.name, "length"),
                        .root = options.root,
                        .process_set = options.process_set};
  std::uint64_t bytes = sends ? object.size() : 0;
  broadcast(context, view(bytes), part);
  if (bytes > kMaxBytes) {
    throw Error(ErrorCode::mismatch,
                fmt::format("object {}: rank {} names a length of {} bytes. Do all ranks call the "
                            "same collectives?",
                            in_quotes(options.name), options.root, bytes),
                options.root, options.name);
  }
  Bytes result(bytes);
  if (sends) std::ranges::copy(object, result.begin());
  part.name = part_name(options.name, "object");
  broadcast(context, view(result), part);
  return result;
}

std::string broadcast_object(const Context& context, std::string_view object,
                             const BroadcastObjectOptions& options) {
  return as_text(broadcast_object(context, as_bytes(object), options));
}

std::vector<Bytes> allgather_object(const Context& context, std::span<const std::byte> object,
                                    const AllgatherOptions& options) {
  check_object(object, options.name);
  const Result all = allgather(context, view(object), options);
  std::vector<Bytes> objects;
  const std::byte* next = all.data();
  for (const std::int64_t bytes : all.rows()) {
    objects.emplace_back(next, next + bytes);
    next += bytes;
  }
  return objects;
}

std::vector<std::string> allgather_object(const Context& context, std::string_view object,
                                          const AllgatherOptions& options) {
  std::vector<std::string> objects;
  for (const Bytes& each : allgather_object(context, as_bytes(object), options)) {
    objects.push_back(as_text(each));
  }
  return objects;
}

}  // namespace hora
