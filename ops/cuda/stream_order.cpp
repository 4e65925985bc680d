#include "ops/cuda/stream_order.h"

namespace hora {

StreamOrder::StreamOrder(EventPool& events, void* stream) : events_(events), ready_(events.take()) {
  ready_->record(static_cast<cudaStream_t>(stream));
}

void StreamOrder::wait_ready(void* stream) {
  wait(static_cast<cudaStream_t>(stream), *ready_);
}

void StreamOrder::record_done(void* stream) {
  if (!done_) done_ = events_.take();
  done_->record(static_cast<cudaStream_t>(stream));
}

void StreamOrder::wait_done(void* stream) {
  if (done_) wait(static_cast<cudaStream_t>(stream), *done_);
}

void StreamOrder::synchronize() {
  if (done_) done_->synchronize();
}

}  // namespace hora
