/// Collectives on several tensors at once, under one handle; <hora/torch/collectives.h> is for
/// LibTorch's.
///
///     std::array gradients{hora::view(weights), hora::view(biases)};
///     hora::GroupHandle averages = hora::grouped_allreduce_async(world, gradients, {.name = "g"});
///     averages.wait();
///     std::vector<hora::Result> all = hora::grouped_allgather(world, gradients, {.name = "all"});
///
/// Tensor i travels as "<name>.<i>" (unnamed where that is empty), together with others up to
/// HORA_FUSION_THRESHOLD. Every rank gives as many, in the same order, of any types and shapes.
/// Errors: collectives.h; where a submission throws, those before it have been waited for. Thread
/// rule: any thread.
#pragma once

#include <hora/collectives.h>
#include <hora/context.h>
#include <hora/export.h>
#include <hora/handle.h>
#include <hora/result.h>
#include <hora/types.h>

#include <chrono>
#include <concepts>
#include <iterator>
#include <optional>
#include <span>
#include <type_traits>
#include <vector>

namespace HORA_EXPORT hora {

/// Several collectives under way, also ones that a program submits itself. `Single`: Handle or
/// ResultHandle, whose rules hold.
template <class Single>
class BasicGroupHandle {
 public:
  /// The tensors' results in order; nothing of Handle.
  using Results =
      std::conditional_t<std::is_same_v<Single, Handle>, void, std::vector<hora::Result>>;

  BasicGroupHandle() noexcept = default;
  explicit BasicGroupHandle(std::vector<Single> handles) noexcept;
  BasicGroupHandle(BasicGroupHandle&& other) noexcept;
  BasicGroupHandle& operator=(BasicGroupHandle&& other) noexcept;
  ~BasicGroupHandle() = default;

  bool ready() const;
  /// Waits for all, then throws the first one's error, in the order of the tensors; the others'
  /// results are gone. Throws Error(invalid_use) when there is nothing to wait for.
  Results wait() { return finish({}, internal::Until::ordered); }
  Results wait(void* stream) { return finish(stream, internal::Until::ordered); }
  Results synchronize() { return finish({}, internal::Until::there); }
  [[nodiscard]] bool wait_for(std::chrono::nanoseconds timeout) const;
  bool valid() const noexcept { return valid_; }

 private:
  Results finish(std::optional<void*> stream, internal::Until until);

  std::vector<Single> handles_;
  bool valid_ = false;
};
using GroupHandle = BasicGroupHandle<Handle>;
using ResultGroupHandle = BasicGroupHandle<ResultHandle>;

/// Views in a std::span, array or vector, not `{}`, which could be LibTorch's tensors. Those of
/// ConstTensorView may be given as either kind.
template <class View>
class ViewSpan : public std::span<const View> {
 public:
  template <class Views>
  requires std::convertible_to<Views&&, std::span<const View>> ViewSpan(Views&& views)
      : std::span<const View>(views) {}  // NOLINT: a conversion
};
template <>
class ViewSpan<ConstTensorView> : public std::vector<ConstTensorView> {
 public:
  template <class Views>
  requires(std::convertible_to<Views&&, std::span<const TensorView>> ||
           std::convertible_to<Views&&, std::span<const ConstTensorView>>) ViewSpan(Views&& views)
      : std::vector<ConstTensorView>(std::begin(views), std::end(views)) {}  // NOLINT: likewise
};

/// Each does for every tensor what the function of collectives.h without `grouped_` does.
void grouped_allreduce(const Context& context, ViewSpan<TensorView> tensors,
                       const AllreduceOptions& options = {});
[[nodiscard]] GroupHandle grouped_allreduce_async(const Context& context,
                                                  ViewSpan<TensorView> tensors,
                                                  const AllreduceOptions& options = {});
void grouped_broadcast(const Context& context, ViewSpan<TensorView> tensors,
                       const BroadcastOptions& options = {});
[[nodiscard]] GroupHandle grouped_broadcast_async(const Context& context,
                                                  ViewSpan<TensorView> tensors,
                                                  const BroadcastOptions& options = {});

/// These return each tensor's result, in order.
std::vector<Result> grouped_allgather(const Context& context,
                                      const ViewSpan<ConstTensorView>& tensors,
                                      const AllgatherOptions& options = {});
[[nodiscard]] ResultGroupHandle grouped_allgather_async(const Context& context,
                                                        const ViewSpan<ConstTensorView>& tensors,
                                                        const AllgatherOptions& options = {});
/// options.splits are those of every tensor.
std::vector<Result> grouped_alltoall(const Context& context,
                                     const ViewSpan<ConstTensorView>& tensors,
                                     const AlltoallOptions& options = {});
[[nodiscard]] ResultGroupHandle grouped_alltoall_async(const Context& context,
                                                       const ViewSpan<ConstTensorView>& tensors,
                                                       const AlltoallOptions& options = {});
std::vector<Result> grouped_reduce_scatter(const Context& context,
                                           const ViewSpan<ConstTensorView>& tensors,
                                           const ReduceScatterOptions& options = {});
[[nodiscard]] ResultGroupHandle grouped_reduce_scatter_async(
    const Context& context, const ViewSpan<ConstTensorView>& tensors,
    const ReduceScatterOptions& options = {});

}  // namespace hora
