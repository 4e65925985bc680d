#include "core/engine/trace_hooks.h"

#include <exception>

#include "core/log.h"
#include "core/process.h"

namespace hora {

TraceIdentity identity_of(const Topology& topology, int rank) {
  return {
      .rank = rank, .size = topology.size(), .node = topology.node_of(rank), .host = host_name()};
}

void trace_unit(const Tracer& trace, std::uint64_t number, const Unit& unit,
                const std::vector<std::shared_ptr<Submission>>& submissions) {
  if (!trace.on()) return;
  std::vector<TensorFacts> tensors;
  for (const auto& submission : submissions) {
    tensors.push_back({submission->name, submission->memory.bytes(), submission->decided_at});
  }
  const bool reduces =
      unit.kind == OperationKind::allreduce || unit.kind == OperationKind::reduce_scatter;
  const UnitFacts facts{.operation = name_of(unit.kind),
                        .type = name_of(unit.type),
                        .op = reduces ? name_of(unit.op) : std::string_view(),
                        .bytes = unit.bytes,
                        .tensors = tensors.size(),
                        .chunks = unit.chunks()};
  trace.record(
      [&](Recording& recording) { recording.planned(trace.unit(number), facts, tensors); });
}

void TracedWait::finish() noexcept {
  try {
    const std::string thread = this_thread_name();
    const TraceTime end = trace_now();
    trace_.record([&](Recording& recording) {
      recording.waited(thread, trace_.tensor(submission_->name), begin_, end);
    });
  } catch (const std::exception& error) {
    try {
      log().warn("a wait is missing in the timeline: {}", error.what());
    } catch (...) {
      // Logging has failed as well; nothing else is lost.
    }
  }
}

}  // namespace hora
