#include "ops/cuda/event.h"

#include <mutex>
#include <utility>
#include <vector>

namespace hora {

Event::Event(const CudaFunctions& functions) {
  cudaEvent_t event = nullptr;
  cuda_check(functions, functions.event_create(&event, cudaEventDisableTiming),
             "cudaEventCreateWithFlags");
  event_ = Owned<Release>(functions, event);
}

void Event::record(cudaStream_t stream) {
  const CudaFunctions& functions = event_.functions();
  cuda_check(functions, functions.event_record(get(), stream), "cudaEventRecord");
}

bool Event::query() const {
  const CudaFunctions& functions = event_.functions();
  const cudaError_t result = functions.event_query(get());
  if (result == cudaErrorNotReady) {
    // CUDA keeps it as the last error, where the application's next check would find it.
    functions.get_last_error();
    return false;
  }
  cuda_check(functions, result, "cudaEventQuery");
  return true;
}

void Event::synchronize() const {
  const CudaFunctions& functions = event_.functions();
  cuda_check(functions, functions.event_synchronize(get()), "cudaEventSynchronize");
}

void wait(cudaStream_t stream, const Event& event) {
  const CudaFunctions& functions = event.event_.functions();
  cuda_check(functions, functions.stream_wait_event(stream, event.get(), 0), "cudaStreamWaitEvent");
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
