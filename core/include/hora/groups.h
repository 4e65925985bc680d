/// Collectives on several tensors at once, under one handle. Tensor i travels under the name
/// "<name>.<i>" (no name where that is empty), all of them together as far as
/// HORA_FUSION_THRESHOLD lets them. Every rank gives as many tensors, in the same order; none at
/// all is nothing to do. <hora/torch_groups.h> does the same for LibTorch's tensors.
///
///     std::array gradients{hora::view(weight), hora::view(bias)};
///     hora::Handles averages = hora::grouped_allreduce_async(world, gradients, {.name = "g"});
///     averages.wait();
///
/// Errors: collectives.h. Where one tensor's submission throws, those before it have been waited
/// for. Thread rule: any thread.
#pragma once

#include <hora/collectives.h>
#include <hora/context.h>
#include <hora/handle.h>
#include <hora/types.h>

#include <chrono>
#include <span>
#include <vector>

namespace hora {

/// Several collectives under way, waited for together; also those that a program submits itself.
/// Move-only; dropped, it waits, as Handle does. Thread rule: one thread at a time.
class Handles {
 public:
  Handles() noexcept = default;
  explicit Handles(std::vector<Handle> handles) noexcept;
  Handles(Handles&& other) noexcept;
  Handles& operator=(Handles&& other) noexcept;
  ~Handles() = default;

  /// True when wait() would not block.
  bool ready() const;
  /// Waits for all of them, then throws the first one's error. Throws Error(invalid_use) when there
  /// is nothing to wait for: waited already, moved from, or made of nothing.
  void wait();
  /// As Handle's.
  void wait(void* stream);
  void synchronize();
  /// As Handle's: true where all are done.
  [[nodiscard]] bool wait_for(std::chrono::nanoseconds timeout) const;
  /// True until wait() has returned or thrown.
  bool valid() const noexcept { return valid_; }

 private:
  template <class Wait>
  void for_all(Wait&& wait);

  std::vector<Handle> handles_;
  bool valid_ = false;
};

void grouped_allreduce(const Context& context, std::span<const TensorView> tensors,
                       const AllreduceOptions& options = {});
[[nodiscard]] Handles grouped_allreduce_async(const Context& context,
                                              std::span<const TensorView> tensors,
                                              const AllreduceOptions& options = {});
void grouped_broadcast(const Context& context, std::span<const TensorView> tensors,
                       const BroadcastOptions& options = {});
[[nodiscard]] Handles grouped_broadcast_async(const Context& context,
                                              std::span<const TensorView> tensors,
                                              const BroadcastOptions& options = {});

}  // namespace hora
