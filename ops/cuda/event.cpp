#include "ops/cuda/event.h"

#include <mutex>
#include <utility>
#include <vector>

#include "ops/cuda/check.h"

namespace hora {

Event::Event(const CudaFunctions& functions) : functions_(&functions) {
  cuda_check(functions, functions.event_create(&event_, cudaEventDisableTiming),
             "cudaEventCreateWithFlags");
}

Event::Event(Event&& other) noexcept
    : functions_(other.functions_), event_(std::exchange(other.event_, nullptr)) {}

Event& Event::operator=(Event&& other) noexcept {
  if (this != &other) {
    release();
    functions_ = other.functions_;
    event_ = std::exchange(other.event_, nullptr);
  }
  return *this;
}

Event::~Event() {
  release();
}

void Event::release() noexcept {
  if (event_ != nullptr) {
    cuda_check_release(*functions_, functions_->event_destroy(std::exchange(event_, nullptr)),
                       "cudaEventDestroy");
  }
}

void Event::record(cudaStream_t stream) {
  cuda_check(*functions_, functions_->event_record(event_, stream), "cudaEventRecord");
}

bool Event::query() const {
  const cudaError_t result = functions_->event_query(event_);
  if (result == cudaErrorNotReady) {
    // CUDA keeps it as the last error, where the application's next check would find it.
    functions_->get_last_error();
    return false;
  }
  cuda_check(*functions_, result, "cudaEventQuery");
  return true;
}

void Event::synchronize() const {
  cuda_check(*functions_, functions_->event_synchronize(event_), "cudaEventSynchronize");
}

void wait(cudaStream_t stream, const Event& event) {
  cuda_check(*event.functions_, event.functions_->stream_wait_event(stream, event.event_, 0),
             "cudaStreamWaitEvent");
}

struct EventPool::State {
  explicit State(const CudaFunctions& table) : functions(table) {}

  const CudaFunctions& functions;
  std::mutex mutex;
  std::size_t created = 0;
  std::vector<std::unique_ptr<Event>> free;
};

EventPool::EventPool(const CudaFunctions& functions, std::size_t ready)
    : state_(std::make_shared<State>(functions)) {
  state_->free.reserve(ready);
  for (; state_->created < ready; ++state_->created) {
    state_->free.push_back(std::make_unique<Event>(functions));
  }
}

std::shared_ptr<Event> EventPool::take() {
  std::unique_ptr<Event> event;
  {
    const std::scoped_lock lock(state_->mutex);
    if (!state_->free.empty()) {
      event = std::move(state_->free.back());
      state_->free.pop_back();
    } else {
      // Room for every event, so that giving one back cannot fail.
      state_->free.reserve(state_->created + 1);
      event = std::make_unique<Event>(state_->functions);
      ++state_->created;
    }
  }
  return {event.release(), [state = state_](Event* returned) {
            std::unique_ptr<Event> owned(returned);
            const std::scoped_lock lock(state->mutex);
            state->free.push_back(std::move(owned));
          }};
}

}  // namespace hora
