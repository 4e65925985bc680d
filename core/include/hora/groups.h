/// Collectives on several tensors at once, under one handle.
///
///     std::array gradients{hora::view(weights), hora::view(biases)};
///     hora::GroupHandle averages = hora::grouped_allreduce_async(world, gradients, {.name = "g"});
///     averages.wait();
///     std::vector<hora::Result> all = hora::grouped_allgather(world, gradients, {.name = "all"});
///
/// Tensor i travels under the name "<name>.<i>" (no name where that is empty), all of them together
/// as far as HORA_FUSION_THRESHOLD lets them. Every rank gives as many tensors, in the same order;
/// none at all is nothing to do. Types and shapes may differ from tensor to tensor.
/// <hora/torch/groups.h> does the same for LibTorch's tensors.
///
/// Errors: collectives.h. Where one tensor's submission throws, those before it have been waited
/// for. Thread rule: any thread.
#pragma once

#include <hora/collectives.h>
#include <hora/context.h>
#include <hora/export.h>
#include <hora/handle.h>
#include <hora/result.h>
#include <hora/types.h>

#include <chrono>
#include <concepts>
#include <span>
#include <type_traits>
#include <vector>

namespace HORA_EXPORT hora {

/// Several collectives under way, waited for together; also those that a program submits itself.
/// `Single` is the handle of one: Handle or ResultHandle. Move-only; dropped, it waits, as Handle
/// does. Thread rule: one thread at a time.
template <class Single>
class BasicGroupHandle {
 public:
  /// What wait() gives: of Handle nothing; of ResultHandle the results, in the order of the
  /// tensors.
  using Results =
      std::conditional_t<std::is_same_v<Single, Handle>, void, std::vector<hora::Result>>;

  BasicGroupHandle() noexcept = default;
  explicit BasicGroupHandle(std::vector<Single> handles) noexcept;
  BasicGroupHandle(BasicGroupHandle&& other) noexcept;
  BasicGroupHandle& operator=(BasicGroupHandle&& other) noexcept;
  ~BasicGroupHandle() = default;

  /// True when wait() would not block.
  bool ready() const;
  /// Waits for all of them, then throws the first one's error, in the order of the tensors; results
  /// of the others are gone then. Throws Error(invalid_use) when there is nothing to wait for:
  /// waited already, moved from, or default-constructed.
  Results wait();
  /// As Single's.
  Results wait(void* stream);
  Results synchronize();
  /// As Handle's: true where all are done.
  [[nodiscard]] bool wait_for(std::chrono::nanoseconds timeout) const;
  /// True until wait() has returned or thrown.
  bool valid() const noexcept { return valid_; }

 private:
  template <class Wait>
  Results for_all(Wait&& wait);

  std::vector<Single> handles_;
  bool valid_ = false;
};
/// The handle of several allreduces, broadcasts or barriers, which leave no result behind.
using GroupHandle = BasicGroupHandle<Handle>;
/// The handle of several allgathers, alltoalls or reduce-scatters: it gives a result each.
using ResultGroupHandle = BasicGroupHandle<ResultHandle>;

/// The views of a group, in a std::span, array or vector. Not `{}`, which could as well be
/// LibTorch's tensors.
template <class View>
class ViewSpan : public std::span<const View> {
 public:
  template <class Views>
  requires std::convertible_to<Views&&, std::span<const View>> ViewSpan(Views&& views)
      : std::span<const View>(views) {}  // NOLINT: a conversion
};

/// Each tensor as by the function of collectives.h without `grouped_`.
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

/// The same, which give each tensor's result, in the order of the tensors. Of views that are read
/// only, and below of others.
std::vector<Result> grouped_allgather(const Context& context, ViewSpan<ConstTensorView> tensors,
                                      const AllgatherOptions& options = {});
[[nodiscard]] ResultGroupHandle grouped_allgather_async(const Context& context,
                                                        ViewSpan<ConstTensorView> tensors,
                                                        const AllgatherOptions& options = {});
/// options.splits, where there are any, are those of every tensor.
std::vector<Result> grouped_alltoall(const Context& context, ViewSpan<ConstTensorView> tensors,
                                     const AlltoallOptions& options = {});
[[nodiscard]] ResultGroupHandle grouped_alltoall_async(const Context& context,
                                                       ViewSpan<ConstTensorView> tensors,
                                                       const AlltoallOptions& options = {});
std::vector<Result> grouped_reduce_scatter(const Context& context,
                                           ViewSpan<ConstTensorView> tensors,
                                           const ReduceScatterOptions& options = {});
[[nodiscard]] ResultGroupHandle grouped_reduce_scatter_async(
    const Context& context, ViewSpan<ConstTensorView> tensors,
    const ReduceScatterOptions& options = {});

std::vector<Result> grouped_allgather(const Context& context, ViewSpan<TensorView> tensors,
                                      const AllgatherOptions& options = {});
[[nodiscard]] ResultGroupHandle grouped_allgather_async(const Context& context,
                                                        ViewSpan<TensorView> tensors,
                                                        const AllgatherOptions& options = {});
std::vector<Result> grouped_alltoall(const Context& context, ViewSpan<TensorView> tensors,
                                     const AlltoallOptions& options = {});
[[nodiscard]] ResultGroupHandle grouped_alltoall_async(const Context& context,
                                                       ViewSpan<TensorView> tensors,
                                                       const AlltoallOptions& options = {});
std::vector<Result> grouped_reduce_scatter(const Context& context, ViewSpan<TensorView> tensors,
                                           const ReduceScatterOptions& options = {});
[[nodiscard]] ResultGroupHandle grouped_reduce_scatter_async(
    const Context& context, ViewSpan<TensorView> tensors, const ReduceScatterOptions& options = {});

}  // namespace hora
