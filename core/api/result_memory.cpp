#include "core/api/result_memory.h"

#include <utility>

namespace hora {

StagedResult::StagedResult(NodeMemory& memory, DeviceHeap& heap, ResultForm form,
                           const std::byte* input, std::size_t bytes)
    : ResultMemory(std::move(form)), memory_(memory), heap_(heap) {
  if (bytes == 0) return;
  input_ = allocate_host(bytes);
  try {
    heap_.to_host(input_, input, bytes, form_.stream);
  } catch (...) {
    release_host(input_);
    throw;
  }
}

StagedResult::~StagedResult() {
  if (data_ != staging_) heap_.release(data_, form_.stream);
  release_host(staging_);
  release_host(input_);
}

void StagedResult::collect() {
  release_host(input_);
  if (bytes_ == 0) return;
  data_ = heap_.allocate(bytes_, form_.stream);
  heap_.to_device(data_, staging_, bytes_, form_.stream);
  release_host(staging_);
}

void StagedResult::release_host(std::byte*& block) {
  if (block) memory_.release(std::exchange(block, nullptr));
}

}  // namespace hora
