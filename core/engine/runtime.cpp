#include "core/engine/runtime.h"

#include <exception>
#include <utility>

#include "core/log.h"

namespace hora {

Runtime::Runtime(std::unique_ptr<Transport> transport, bool engine_thread)
    : transport_(std::move(transport)),
      parts_(transport_->parts()),
      node_(parts_.world.topology.node_of(parts_.rank)),
      local_rank_(parts_.world.topology.local_rank_of(parts_.rank)),
      engine_(parts_) {
  if (engine_thread) engine_.start_thread();
}

Runtime::~Runtime() {
  engine_.stop();
  if (Trace* const trace = parts_.trace.trace()) trace->close();
}

std::uint32_t Runtime::next_instance_number(ProcessSet set) {
  const std::lock_guard lock(instances_lock_);
  return instances_[set]++;
}

void Runtime::shutdown() {
  if (std::exchange(shut_down_, true)) return;
  engine_.depart();
  engine_.stop();
  if (Trace* const trace = parts_.trace.trace()) trace->close();
  if (engine_.poisoned()) abort("a transport had failed before shutdown");
  engine_.disconnect_sets();
  transport_->disconnect();
}

void Runtime::abort(const std::string& why) noexcept {
  try {
    log().critical("rank {} ends the job: {}", parts_.rank, why);
    log().flush();
  } catch (...) {
    // The log is of no more use; ending is what matters.
  }
  transport_->abort();
  std::terminate();
}

}  // namespace hora
