#include <hora/collectives.h>

#include <memory>
#include <optional>
#include <utility>

#include "core/api/internals.h"
#include "core/api/results.h"
#include "core/engine/engine.h"

namespace hora {
using namespace internal;
namespace {

void run(const Context& context, Request&& r, ProcessSet set) {
  runtime_of(context)->engine().submit_and_wait(std::move(r), set);
}

Handle start(const Context& context, Request&& r, ProcessSet set) {
  const auto& runtime = runtime_of(context);
  return Access::handle(runtime, runtime->engine().submit(std::move(r), set));
}

/// Keeps the runtime alive as long as the memory. In a forked child neither is destroyed.
std::shared_ptr<ResultMemory> held_by(const std::shared_ptr<Runtime>& runtime,
                                      std::unique_ptr<ResultMemory> memory) {
  ResultMemory* const plain = memory.release();
  return {plain, [runtime](ResultMemory* result) {
            if (!runtime->is_forked()) delete result;
          }};
}

/// Where the result goes: memory of hora's, or `output`.
std::shared_ptr<ResultMemory> add_result(const Context& context, Request& r, ProcessSet set,
                                         const TensorView* output) {
  const auto& runtime = runtime_of(context);
  const EngineParts& parts = runtime->parts();
  const Shape& shape = r.signature.shape;
  ResultForm form{.type = r.signature.type,
                  .row = Shape(shape.begin() + 1, shape.end()),
                  .device = {},
                  .stream = r.stream,
                  .name = {},
                  .output = std::nullopt};
  if (output) {
    check_output(context, r, *output, set);
    form.name = std::string(r.name);
    form.output = {static_cast<std::byte*>(output->data), output->bytes()};
    form.stream = output->stream;
    if (output->stream != r.stream) r.output_stream = output->stream;
  }
  std::unique_ptr<ResultMemory> memory;
  if (r.signature.device == DeviceKind::cpu) {
    auto host = std::make_unique<HostResult>(runtime->memory(), std::move(form));
    r.result_place = host.get();
    memory = std::move(host);
  } else {
    form.device = {r.signature.device, parts.device_index};
    if (runtime->engine().runs_on_device(r, set)) {
      memory = std::make_unique<DeviceResult>(*parts.device_heap, std::move(form));
    } else {
      auto staged = std::make_unique<StagedResult>(runtime->memory(), *parts.device_heap,
                                                   std::move(form), r.data, r.bytes, r.stream);
      r.data = staged->input();
      memory = std::move(staged);
    }
  }
  auto shared = held_by(runtime, std::move(memory));
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
  return runtime_of(context)->engine().join(set);
}

}  // namespace hora
