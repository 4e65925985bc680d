/// Move-only ownership of one of CUDA's handles.
#pragma once

#include <utility>

#include "ops/cuda/check.h"

namespace hora {

/// `Release` says how a handle is freed: its type `Handle`, the member `function` of
/// CudaFunctions, and that function's `name`. Freed once; a failure of that is logged, not
/// thrown. Thread rule: one thread at a time; get() from any.
template <class Release>
class Owned {
 public:
  using Handle = typename Release::Handle;

  Owned() noexcept = default;
  /// `functions` outlive it. A null handle owns nothing.
  Owned(const CudaFunctions& functions, Handle handle) noexcept
      : functions_(&functions), handle_(handle) {}
  Owned(Owned&& other) noexcept
      : functions_(other.functions_), handle_(std::exchange(other.handle_, nullptr)) {}
  Owned& operator=(Owned&& other) noexcept {
    if (this != &other) {
      release();
      functions_ = other.functions_;
      handle_ = std::exchange(other.handle_, nullptr);
    }
    return *this;
  }
  ~Owned() { release(); }

  Handle get() const noexcept { return handle_; }
  const CudaFunctions& functions() const noexcept { return *functions_; }

 private:
  void release() noexcept {
    if (handle_ == nullptr) return;
    cuda_check_release(*functions_,
                       (functions_->*Release::function)(std::exchange(handle_, nullptr)),
                       Release::name);
  }

  const CudaFunctions* functions_ = nullptr;
  Handle handle_ = nullptr;
};

}  // namespace hora
