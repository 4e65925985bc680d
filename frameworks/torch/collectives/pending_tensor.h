/// What TensorHandle waits for.
#pragma once

#include <hora/torch_collectives.h>

namespace hora {

/// Thread rule: as TensorHandle. The destructor waits, as Handle's.
class PendingTensor {
 public:
  virtual ~PendingTensor() = default;
  virtual bool ready() const = 0;
  virtual torch::Tensor wait() = 0;
};

/// The values arrive in `contiguous`; where that is not `target`, they are copied there.
class PendingInPlace final : public PendingTensor {
 public:
  PendingInPlace(Handle handle, torch::Tensor contiguous, torch::Tensor target) noexcept
      : contiguous_(std::move(contiguous)),
        target_(std::move(target)),
        handle_(std::move(handle)) {}
  bool ready() const override { return handle_.ready(); }
  torch::Tensor wait() override;

 private:
  torch::Tensor contiguous_;
  torch::Tensor target_;
  Handle handle_;  // last: it waits while its memory is still held
};

/// The values arrive in memory of hora's.
class PendingResult final : public PendingTensor {
 public:
  explicit PendingResult(AlltoallHandle handle) noexcept : handle_(std::move(handle)) {}
  bool ready() const override { return handle_.ready(); }
  torch::Tensor wait() override { return handle_.wait().tensor; }

 private:
  AlltoallHandle handle_;
};

}  // namespace hora
