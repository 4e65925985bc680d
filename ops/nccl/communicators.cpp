#include "ops/nccl/communicators.h"

#include <utility>

#include "ops/nccl/wait_until.h"

namespace hora {

void NcclCommunicators::check_async() const {
  for (const NcclCommunicator& each : open_) {
    if (each.get() != nullptr) each.check_async();
  }
}

void NcclCommunicators::abort() noexcept {
  for (NcclCommunicator& each : open_) each.abort();
  for (NcclCommunicator& each : closing_) each.abort();
}

void NcclCommunicators::retire(NcclCommunicator& communicator) {
  if (communicator.get() == nullptr) return;
  closing_.push_back(std::move(communicator));
  closing_.back().begin_close();
}

bool NcclCommunicators::advance() {
  std::erase_if(closing_, [](NcclCommunicator& each) { return each.closed(); });
  return !closing_.empty();
}

void NcclCommunicators::close(NcclCommunicator::Deadline deadline) {
  // All of them begin before any is waited for.
  for (NcclCommunicator& each : open_) {
    if (each.get() == nullptr) continue;
    each.wait_ready(deadline);
    retire(each);
  }
  wait_until([this] { return !advance(); }, deadline);
}

}  // namespace hora
