#include <hora/collectives.h>

#include <memory>
#include <utility>

#include "core/api/requests.h"
#include "core/api/result_memory.h"
#include "core/engine/runtime.h"

namespace hora {
namespace {

void run(const Context& context, Request r, ProcessSet set) {
  context.runtime()->engine().submit_and_wait(std::move(r), set);
}

Handle start(const Context& context, Request r, ProcessSet set) {
  const auto& runtime = context.runtime();
  return {runtime, runtime->engine().submit(std::move(r), set)};
}

std::shared_ptr<ResultMemory> add_result(const Context& context, Request& r) {
  const Shape& shape = r.signature.shape;
  auto memory = std::make_shared<ResultMemory>(context.runtime(), r.signature.type,
                                               Shape(shape.begin() + 1, shape.end()));
  r.result = memory;
  return memory;
}

Result run_exchange(const Context& context, Request r, ProcessSet set) {
  auto memory = add_result(context, r);
  run(context, std::move(r), set);
  return Result(std::move(memory));
}

ResultHandle start_exchange(const Context& context, Request r, ProcessSet set) {
  auto memory = add_result(context, r);
  return {start(context, std::move(r), set), std::move(memory)};
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

Result allgather(const Context& context, const TensorView& tensor,
                 const AllgatherOptions& options) {
  return run_exchange(context, request(context, tensor, options), options.process_set);
}
ResultHandle allgather_async(const Context& context, const TensorView& tensor,
                             const AllgatherOptions& options) {
  return start_exchange(context, request(context, tensor, options), options.process_set);
}

Result alltoall(const Context& context, const TensorView& tensor, const AlltoallOptions& options) {
  return run_exchange(context, request(context, tensor, options), options.process_set);
}
ResultHandle alltoall_async(const Context& context, const TensorView& tensor,
                            const AlltoallOptions& options) {
  return start_exchange(context, request(context, tensor, options), options.process_set);
}

Result reduce_scatter(const Context& context, const TensorView& tensor,
                      const ReduceScatterOptions& options) {
  return run_exchange(context, request(context, tensor, options), options.process_set);
}
ResultHandle reduce_scatter_async(const Context& context, const TensorView& tensor,
                                  const ReduceScatterOptions& options) {
  return start_exchange(context, request(context, tensor, options), options.process_set);
}

int join(const Context& context, ProcessSet set) {
  return context.runtime()->engine().join(set);
}

}  // namespace hora
