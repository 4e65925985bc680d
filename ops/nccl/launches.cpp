#include "ops/nccl/launches.h"

#include <utility>

#include "ops/cuda/device_guard.h"

namespace hora {

class NcclLaunches::Launch final : public PendingWork {
 public:
  Launch(NcclLaunches& launches, Step enqueue, LastStep enqueued)
      : launches_(launches),
        ticket_(launches.next_++),
        enqueue_(std::move(enqueue)),
        enqueued_(std::move(enqueued)) {}

  bool poll() override {
    if (stage_ == Stage::queued && launches_.launched_ != ticket_) return false;
    const DeviceGuard device(launches_.cuda_, launches_.device_);
    if (stage_ == Stage::queued) {
      enqueue_();
      stage_ = Stage::taken_in;
    }
    if (stage_ == Stage::taken_in) {
      if (!launches_.communicator_.ready()) return false;
      event_ = enqueued_();
      ++launches_.launched_;
      stage_ = Stage::under_way;
    }
    return !event_ || event_->query();
  }

 private:
  enum class Stage { queued, taken_in, under_way };
  NcclLaunches& launches_;
  std::uint64_t ticket_;
  Step enqueue_;
  LastStep enqueued_;
  const Event* event_ = nullptr;
  Stage stage_ = Stage::queued;
};

Completion NcclLaunches::launch(Step enqueue, LastStep enqueued) {
  return Completion(std::make_unique<Launch>(*this, std::move(enqueue), std::move(enqueued)));
}

}  // namespace hora
