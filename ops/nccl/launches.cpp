#include "ops/nccl/launches.h"

#include <optional>
#include <utility>

#include "ops/cuda/stream.h"

namespace hora::internal {

class NcclLaunches::Launch final : public PendingWork {
 public:
  Launch(NcclLaunches& launches, bool takes_turn, Step enqueue, LastStep enqueued)
      : launches_(launches),
        ticket_(launches.next_++),
        takes_turn_(takes_turn),
        enqueue_(std::move(enqueue)),
        enqueued_(std::move(enqueued)) {}

  /// Blocks for up to 100 us when NCCL has been called.
  bool poll() override {
    if (stage_ == Stage::queued && !may_begin()) return false;
    const DeviceGuard device(launches_.context_.cuda, launches_.context_.device);
    if (stage_ == Stage::queued) {
      enqueue_();
      stage_ = Stage::taken_in;
      // Once: where the communicator has to connect first, NCCL takes milliseconds.
      spin_until([this] { return launches_.communicator_.ready(); },
                 [this] { return launches_.context_.watch.start(); });
    }
    if (stage_ == Stage::taken_in) {
      if (!launches_.communicator_.ready()) return keep_waiting();
      event_ = enqueued_();
      ++launches_.launched_;
      if (takes_turn_) launches_.ticket_lock_.done();
      stage_ = Stage::under_way;
    }
    return !event_ || event_->query();
  }

 private:
  enum class Stage { queued, taken_in, under_way };

  bool may_begin() {
    if (!launches_.is_next(ticket_)) return false;
    return !takes_turn_ || launches_.ticket_lock_.has_turn() || keep_waiting();
  }

  /// Polls the watch; returns false. Other ranks must reach the same point.
  bool keep_waiting() {
    const DeviceWatch& watch = launches_.context_.watch;
    if (!waits_since_) waits_since_ = watch.start();
    watch.check_wait(*waits_since_);
    return false;
  }

  NcclLaunches& launches_;
  std::uint64_t ticket_;
  bool takes_turn_;
  Step enqueue_;
  LastStep enqueued_;
  std::optional<DeviceWatch::Time> waits_since_;
  const Event* event_ = nullptr;
  Stage stage_ = Stage::queued;
};

Completion NcclLaunches::launch(bool takes_turn, Step enqueue, LastStep enqueued) {
  if (connection_.begin) {
    connection_.announce();
    connecting_ = Completion(std::make_unique<Launch>(
        *this, true, std::exchange(connection_, {}).begin, [] { return nullptr; }));
  }
  return Completion(
      std::make_unique<Launch>(*this, takes_turn, std::move(enqueue), std::move(enqueued)));
}

bool NcclLaunches::is_next(std::uint64_t ticket) {
  // Only this launch polls the first one.
  if (launched_ == 0 && ticket != 0) connecting_.poll();
  return launched_ == ticket;
}

}  // namespace hora::internal
