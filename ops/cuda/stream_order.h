/// DeviceWork on CUDA: two events.
#pragma once

#include <memory>

#include "core/engine/device.h"
#include "ops/cuda/event.h"

namespace hora {

/// Thread rule: as DeviceWork.
class StreamOrder final : public DeviceWork {
 public:
  /// Records the caller's event on `stream`.
  StreamOrder(EventPool& events, void* stream);

  void wait_ready(void* stream) override;
  void record_done(void* stream) override;
  void wait_done(void* stream) override;
  void synchronize() override;

 private:
  EventPool& events_;
  std::shared_ptr<Event> ready_;
  std::shared_ptr<Event> done_;  ///< null: nothing was done, such as for an empty tensor
};

}  // namespace hora
