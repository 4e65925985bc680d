#include "examples/vision/data/copied_batches.h"

#include <thread>
#include <utility>

namespace vision {

CopiedBatches::~CopiedBatches() {
  for (Copy& copy : copies_) {
    try {
      while (!copy.ended()) std::this_thread::yield();
    } catch (...) {
      abandon(std::move(copy.batch));
    }
  }
}

void CopiedBatches::keep(std::shared_ptr<BatchData> batch, Ended ended) {
  copies_.push_back({std::move(batch), std::move(ended)});
}

void CopiedBatches::release() {
  copies_.remove_if([](const Copy& copy) { return copy.ended(); });
}

void CopiedBatches::abandon(std::shared_ptr<BatchData> batch) {
  static_cast<void>(new std::shared_ptr<BatchData>(std::move(batch)));
}

}  // namespace vision
