#include "core/api/requests.h"

#include <hora/error.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <string>
#include <utility>

#include "core/api/internals.h"
#include "core/base/checked.h"
#include "core/base/text.h"
#include "core/engine/runtime.h"
#include "core/plan/exchange.h"

namespace hora::internal {
namespace {

constexpr std::size_t kMaxNameBytes = 1024;
constexpr std::size_t kMaxDimensions = 64;

/// The name up to its limit, without a part of a UTF-8 character at the end.
std::string shortened(std::string_view name) {
  std::size_t bytes = std::min(name.size(), kMaxNameBytes);
  while (bytes > 0 && bytes < name.size() && (name[bytes] & 0xC0) == 0x80) --bytes;
  return std::string(name.substr(0, bytes));
}

[[noreturn]] void refuse(std::string_view name, const std::string& why) {
  throw Error(ErrorCode::invalid_argument, tensor_text(name) + ": " + why, -1, shortened(name));
}

/// Bytes of a TensorView or a ConstTensorView; errors get its name.
std::size_t bytes_of(std::string_view name, const auto& view) {
  try {
    return view.bytes();
  } catch (const Error& error) {
    refuse(name, error.what());
  }
}

template <class Options>
std::chrono::milliseconds timeout_of(const Options& options) {
  if (options.timeout.count() < 0) {
    refuse(options.name, "a timeout of " + std::to_string(options.timeout.count()) +
                             " ms: give a positive one, or 0 for that of HORA_TIMEOUT");
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
    refuse(name, "at most " + std::to_string(kMaxDimensions) + " dimensions, this tensor has " +
                     std::to_string(tensor.shape.size()));
  }
  if (bytes_of(name, tensor) > 0 && tensor.data == nullptr) {
    refuse(name, "its data pointer is null, but its shape has " +
                     std::to_string(tensor.elements()) + " elements");
  }
  if (tensor.device != Device{}) {
    check_device(runtime_of(context)->parts(), tensor.device, tensor_text(name), name);
  }
  auto* const data = const_cast<void*>(static_cast<const void*>(tensor.data));
  Request request{name, {}, static_cast<std::byte*>(data), tensor.stream};
  request.signature.kind = kind;
  request.signature.type = tensor.type;
  request.signature.device = tensor.device.kind;
  request.signature.shape = tensor.shape;
  request.timeout = timeout_of(options);
  return request;
}

template <class Options>
void set_reduction(Request& request, const Options& options) {
  Signature& signature = request.signature;
  if (!is_enumerator(options.op)) {
    refuse(options.name, "the reduction number " + std::to_string(static_cast<int>(options.op)) +
                             " is none of hora's (see hora::ReduceOp)");
  }
  const bool scales = is_floating_point(signature.type);
  const auto type = [&] { return std::string(name_of(signature.type)); };
  if (options.op == ReduceOp::average && !scales) {
    refuse(options.name, "an average of " + type() + " is not defined: ask for ReduceOp::sum");
  }
  if (options.op == ReduceOp::adasum && !scales) {
    refuse(options.name, "Adasum of " + type() + " is not defined: it takes floating-point types");
  }
  const bool scaled = options.prescale != 1.0 || options.postscale != 1.0;
  if (scaled && (!scales || options.op == ReduceOp::adasum)) {
    refuse(options.name,
           "prescale and postscale are for sums, averages, minima, maxima and "
           "products of floating-point types, not for " +
               std::string(name_of(options.op)) + " of " + type());
  }
  if (!std::isfinite(options.prescale) || !std::isfinite(options.postscale)) {
    refuse(options.name, "prescale and postscale must be finite numbers");
  }
  signature.op = options.op;
  signature.prescale = options.prescale;
  signature.postscale = options.postscale;
}

/// The first extent may differ by rank: it is this rank's alone.
void make_exchange(Request& request, const ConstTensorView& tensor) {
  request.bytes = tensor.bytes();
  request.signature.op = ReduceOp::sum;
  request.signature.shape.front() = kAnyExtent;
}

void check_has_rows(const std::string& name, const ConstTensorView& tensor, OperationKind kind) {
  if (tensor.shape.empty()) {
    refuse(name,
           "a scalar has no first dimension for " + std::string(name_of(kind)) + " to divide");
  }
}

std::vector<std::int64_t> even_splits(const std::string& name, std::int64_t rows, int ranks) {
  if (rows % ranks != 0) {
    refuse(name, std::to_string(rows) + " rows cannot be divided evenly among " +
                     std::to_string(ranks) + " ranks: give splits");
  }
  return std::vector<std::int64_t>(static_cast<std::size_t>(ranks), rows / ranks);
}

void check_splits(const std::string& name, const std::vector<std::int64_t>& splits,
                  std::int64_t rows, int ranks) {
  if (splits.size() != static_cast<std::size_t>(ranks)) {
    refuse(name, std::to_string(splits.size()) + " splits for " + std::to_string(ranks) +
                     " ranks: give one for each rank of the process set");
  }
  Checked sum = 0;
  for (std::size_t i = 0; i < splits.size(); ++i) {
    if (splits[i] < 0) {
      refuse(name, "split " + std::to_string(i) + " is " + std::to_string(splits[i]) +
                       " rows: give 0 or more");
    }
    sum = sum + splits[i];
  }
  const bool fits = sum.at_most(std::numeric_limits<std::uint64_t>::max());
  if (!fits || sum.value() != static_cast<std::size_t>(rows)) {
    refuse(name, "the splits add up to " + (fits ? std::to_string(sum.value()) : "2^64 or more") +
                     " rows, and the tensor has " + std::to_string(rows));
  }
}

const std::vector<int>& members(const Context& context, std::string_view name, ProcessSet set) {
  const Engine& engine = runtime_of(context)->engine();
  try {
    return engine.ranks_of(set);
  } catch (const Error& error) {
    refuse(name, error.what());
  }
}

}  // namespace

void check_name(const std::string& name) {
  if (name.size() > kMaxNameBytes || name.find('\0') != std::string::npos) {
    refuse(name, "a name has at most " + std::to_string(kMaxNameBytes) +
                     " bytes and no zero byte, this one has " + std::to_string(name.size()));
  }
}

Request request(const Context& context, const TensorView& tensor, const AllreduceOptions& options) {
  Request result = of_tensor(context, options, tensor, OperationKind::allreduce);
  set_reduction(result, options);
  return result;
}

Request request(const Context& context, const TensorView& tensor, const BroadcastOptions& options) {
  Request result = of_tensor(context, options, tensor, OperationKind::broadcast);
  const auto& ranks = members(context, options.name, options.process_set);
  if (!std::binary_search(ranks.begin(), ranks.end(), options.root)) {
    refuse(options.name, "root " + std::to_string(options.root) + " is no rank of process set " +
                             to_string(options.process_set) + ", which has " +
                             std::to_string(ranks.size()) + " from " +
                             std::to_string(ranks.front()) + " to " + std::to_string(ranks.back()));
  }
  result.signature.root = options.root;
  return result;
}

Request request(const Context&, const BarrierOptions& options) {
  check_name(options.name);
  Request result{options.name, {}};
  result.signature.kind = OperationKind::barrier;
  result.signature.type = DataType::uint8;
  result.signature.shape = {0};
  result.timeout = timeout_of(options);
  return result;
}

Request request(const Context& context, const ConstTensorView& tensor,
                const AllgatherOptions& options) {
  Request result = of_tensor(context, options, tensor, OperationKind::allgather);
  Shape& shape = result.signature.shape;
  if (shape.empty()) shape = {1};
  result.rows = {shape.front()};
  make_exchange(result, tensor);
  return result;
}

Request request(const Context& context, const ConstTensorView& tensor,
                const AlltoallOptions& options) {
  Request result = of_tensor(context, options, tensor, OperationKind::alltoall);
  check_has_rows(options.name, tensor, OperationKind::alltoall);
  const int ranks = static_cast<int>(members(context, options.name, options.process_set).size());
  const std::int64_t rows = tensor.shape.front();
  result.rows = options.splits.empty() ? even_splits(options.name, rows, ranks) : options.splits;
  check_splits(options.name, result.rows, rows, ranks);
  make_exchange(result, tensor);
  return result;
}

Request request(const Context& context, const ConstTensorView& tensor,
                const ReduceScatterOptions& options) {
  Request result = of_tensor(context, options, tensor, OperationKind::reduce_scatter);
  check_has_rows(options.name, tensor, OperationKind::reduce_scatter);
  if (options.op == ReduceOp::adasum) {
    refuse(options.name, "Adasum is for allreduce: its result is of the whole tensor");
  }
  result.bytes = tensor.bytes();
  result.rows = {tensor.shape.front()};
  set_reduction(result, options);
  return result;
}

void check_output(const Context& context, const Request& request, const TensorView& output,
                  ProcessSet set) {
  const Signature& signature = request.signature;
  if (output.type != signature.type) {
    refuse(request.name, "its output is of " + std::string(name_of(output.type)) +
                             ", and the result of " + std::string(name_of(signature.type)));
  }
  if (output.device.kind != signature.device) {
    refuse(request.name, "its output is on " + std::string(name_of(output.device.kind)) +
                             ", and the result on " + std::string(name_of(signature.device)) +
                             ": give memory on the input's device");
  }
  if (output.device != Device{}) {
    check_device(runtime_of(context)->parts(), output.device,
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
  const auto& ranks = members(context, request.name, set);
  const auto position = std::lower_bound(ranks.begin(), ranks.end(), context.rank());
  if (position == ranks.end() || *position != context.rank()) return;  // submit() reports that
  const std::int64_t rows = scattered_rows(request.rows.front(), static_cast<int>(ranks.size()),
                                           static_cast<int>(position - ranks.begin()));
  const std::size_t result = static_cast<std::size_t>(rows) * signature.row_bytes();
  if (bytes != result) refuse(request.name, output_text(bytes, result, signature.type));
}

std::string output_text(std::size_t output_bytes, std::size_t result_bytes, DataType type) {
  const std::size_t size = size_of(type);
  return "its output has " + std::to_string(output_bytes / size) + " elements, and the result " +
         std::to_string(result_bytes / size) + ": they must be as many";
}

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
  if (device.kind == DeviceKind::cpu) refuse("the CPU has index 0 alone");
  if (!parts.device) refuse("this rank has a data path for the CPU only");
  if (device.index != parts.device_index) {
    refuse("this rank works on " + text({device.kind, parts.device_index}) +
           " alone: one device a process, see hora::local_device()");
  }
}

}  // namespace hora::internal
