#include <hora/collectives.h>
#include <hora/error.h>

#include <string>
#include <utility>

#include "core/api/check_device.h"
#include "core/engine/runtime.h"

namespace hora {
namespace {

constexpr std::size_t kMaxNameBytes = 1024;
constexpr std::size_t kMaxDimensions = 64;

std::string described(const std::string& name) {
  return name.empty() ? std::string("unnamed tensor") : "tensor \"" + name + "\"";
}

[[noreturn]] void refuse(const std::string& name, const std::string& why) {
  throw Error(ErrorCode::invalid_argument, described(name) + ": " + why, -1, name);
}

void check_common(const std::string& name, ProcessSet process_set) {
  if (name.size() > kMaxNameBytes || name.find('\0') != std::string::npos) {
    refuse(name.substr(0, 64), "a name has at most " + std::to_string(kMaxNameBytes) +
                                   " bytes and no zero byte, this one has " +
                                   std::to_string(name.size()));
  }
  if (process_set != 0) {
    refuse(name, "process set " + std::to_string(process_set) +
                     " does not exist: only set 0, the world, does");
  }
}

Signature signature_of(const Context& context, const std::string& name, const TensorView& tensor,
                       OperationKind kind) {
  if (tensor.shape.size() > kMaxDimensions) {
    refuse(name, "at most " + std::to_string(kMaxDimensions) + " dimensions, this tensor has " +
                     std::to_string(tensor.shape.size()));
  }
  if (tensor.bytes() > 0 && tensor.data == nullptr) {
    refuse(name, "its data pointer is null, but its shape has " +
                     std::to_string(tensor.elements()) + " elements");
  }
  if (tensor.device.kind != DeviceKind::cpu) {
    check_device(context.runtime()->parts(), tensor.device, described(name), name);
  }
  Signature signature;
  signature.kind = kind;
  signature.type = tensor.type;
  signature.device = tensor.device.kind;
  signature.shape = tensor.shape;
  return signature;
}

struct Request {
  std::string name;
  Signature signature;
  std::byte* data = nullptr;
  void* stream = nullptr;
};

Request request(const Context& context, const TensorView& tensor, const AllreduceOptions& options) {
  check_common(options.name, options.process_set);
  Request r{options.name, signature_of(context, options.name, tensor, OperationKind::allreduce),
            static_cast<std::byte*>(tensor.data), tensor.stream};
  if (options.op == ReduceOp::average && !is_floating_point(tensor.type)) {
    refuse(options.name, "an average of " + std::string(name_of(tensor.type)) +
                             " is not defined: ask for ReduceOp::sum");
  }
  if (tensor.device.kind != DeviceKind::cpu && tensor.type == DataType::int16) {
    refuse(options.name, "int16 is reduced on the CPU only: convert the tensor to int32");
  }
  r.signature.op = options.op;
  return r;
}

Request request(const Context& context, const TensorView& tensor, const BroadcastOptions& options) {
  check_common(options.name, options.process_set);
  if (options.root < 0 || options.root >= context.size()) {
    refuse(options.name, "root " + std::to_string(options.root) + " is no rank: ranks are 0 to " +
                             std::to_string(context.size() - 1));
  }
  Request r{options.name, signature_of(context, options.name, tensor, OperationKind::broadcast),
            static_cast<std::byte*>(tensor.data), tensor.stream};
  r.signature.root = options.root;
  return r;
}

Request request(const Context&, const BarrierOptions& options) {
  check_common(options.name, options.process_set);
  Request r{options.name, {}};
  r.signature.kind = OperationKind::barrier;
  r.signature.type = DataType::uint8;
  r.signature.shape = {0};
  return r;
}

void run(const Context& context, Request r) {
  context.runtime()->engine().submit_and_wait(std::move(r.name), std::move(r.signature), r.data,
                                              r.stream);
}

Handle start(const Context& context, Request r) {
  const auto& runtime = context.runtime();
  return {runtime,
          runtime->engine().submit(std::move(r.name), std::move(r.signature), r.data, r.stream)};
}

}  // namespace

void allreduce(const Context& context, const TensorView& tensor, const AllreduceOptions& options) {
  run(context, request(context, tensor, options));
}
Handle allreduce_async(const Context& context, const TensorView& tensor,
                       const AllreduceOptions& options) {
  return start(context, request(context, tensor, options));
}

void broadcast(const Context& context, const TensorView& tensor, const BroadcastOptions& options) {
  run(context, request(context, tensor, options));
}
Handle broadcast_async(const Context& context, const TensorView& tensor,
                       const BroadcastOptions& options) {
  return start(context, request(context, tensor, options));
}

void barrier(const Context& context, const BarrierOptions& options) {
  run(context, request(context, options));
}
Handle barrier_async(const Context& context, const BarrierOptions& options) {
  return start(context, request(context, options));
}

}  // namespace hora
