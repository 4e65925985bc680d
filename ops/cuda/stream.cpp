#include "ops/cuda/stream.h"

#include <utility>

#include "ops/cuda/check.h"

namespace hora {

Stream::Stream(const CudaFunctions& functions, int priority) : functions_(&functions) {
  cuda_check(functions, functions.stream_create(&stream_, cudaStreamNonBlocking, priority),
             "cudaStreamCreateWithPriority");
}

Stream::Stream(Stream&& other) noexcept
    : functions_(other.functions_), stream_(std::exchange(other.stream_, nullptr)) {}

Stream& Stream::operator=(Stream&& other) noexcept {
  if (this != &other) {
    release();
    functions_ = other.functions_;
    stream_ = std::exchange(other.stream_, nullptr);
  }
  return *this;
}

Stream::~Stream() {
  release();
}

void Stream::release() noexcept {
  if (stream_ != nullptr) {
    cuda_check_release(*functions_, functions_->stream_destroy(std::exchange(stream_, nullptr)),
                       "cudaStreamDestroy");
  }
}

}  // namespace hora
