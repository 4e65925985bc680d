#include "frameworks/torch/collectives/pending_tensors.h"

#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <string>

#include "frameworks/torch/memory/cpu_allocator.h"
#include "frameworks/torch/tensor_view.h"
#include "frameworks/torch/working_device.h"

namespace hora::internal {
namespace {

// The operations: how the core's call is named, and, out of place, what it works on.

Handle submit(const Context& context, const TensorView& view, const AllreduceOptions& options) {
  return allreduce_async(context, view, options);
}
Handle submit(const Context& context, const TensorView& view, const BroadcastOptions& options) {
  return broadcast_async(context, view, options);
}
ResultHandle submit(const Context& context, const ConstTensorView& view,
                    const AllgatherOptions& options) {
  return allgather_async(context, view, options);
}
ResultHandle submit(const Context& context, const ConstTensorView& view,
                    const AlltoallOptions& options) {
  return alltoall_async(context, view, options);
}
ResultHandle submit(const Context& context, const ConstTensorView& view,
                    const ReduceScatterOptions& options) {
  return reduce_scatter_async(context, view, options);
}

template <class Options>
torch::Tensor operand(const Context& context, const torch::Tensor& tensor, const Options& options) {
  if constexpr (std::is_same_v<Options, BroadcastOptions>) {
    if (context.rank() != options.root) return torch::empty_like(tensor);
  }
  if constexpr (std::is_same_v<Options, AllreduceOptions> ||
                std::is_same_v<Options, BroadcastOptions>) {
    return tensor.clone();  // it is overwritten
  }
  return tensor.detach().contiguous();  // set_data() of the caller's leaves this one's memory
}

/// One tensor's collective. Of a Handle the values arrive in `contiguous`; where that is not
/// `target`, they are copied there. Of a ResultHandle they arrive in memory of hora's, from where
/// they come to the device of `target`.
template <class AnyHandle>
struct PendingTensor {
  torch::Tensor contiguous;
  torch::Tensor target;
  AnyHandle handle;  // last: it waits while its memory is still held
};

AlltoallResult collect(PendingTensor<Handle>& pending) {
  void* const stream = current_stream(pending.contiguous.device());
  pending.handle.wait(stream);
  keep_for_stream(pending.contiguous, stream);
  if (pending.contiguous.is_same(pending.target)) {
    note_written(pending.target);
  } else {
    const torch::NoGradGuard no_grad;
    pending.target.copy_(pending.contiguous);
  }
  return {std::move(pending.target), {}};
}

AlltoallResult collect(PendingTensor<ResultHandle>& pending) {
  void* const stream = current_stream(pending.contiguous.device());
  const Result result = pending.handle.wait(stream);
  keep_for_stream(pending.contiguous, stream);
  return {on_device(to_tensor(result), pending.target.device()), result.rows()};
}

template <class AnyHandle>
class PendingGroup final : public PendingTensors {
 public:
  explicit PendingGroup(std::size_t size) { members_.reserve(size); }
  PendingGroup(const PendingGroup&) = delete;
  PendingGroup& operator=(const PendingGroup&) = delete;
  ~PendingGroup() override {
    // A handle that an exception drops does not wait, and the collective goes on.
    if (std::uncaught_exceptions() == 0) return;
    for (const auto& each : members_) {
      if (each.handle.valid()) never_free(each.contiguous.storage());
    }
  }

  /// `contiguous`: `target`, or what has its values.
  template <class Options>
  void add(const Context& context, torch::Tensor contiguous, torch::Tensor target,
           const Options& options) {
    AnyHandle handle = submit(context, view_of(options.name, contiguous), options);
    members_.push_back({std::move(contiguous), std::move(target), std::move(handle)});
  }

  bool ready() const override {
    return std::all_of(members_.begin(), members_.end(),
                       [](const auto& each) { return each.handle.ready(); });
  }

  bool wait_for(std::chrono::nanoseconds timeout) const override {
    const auto begin = std::chrono::steady_clock::now();
    return std::all_of(members_.begin(), members_.end(), [&](const auto& each) {
      return each.handle.wait_for(timeout - (std::chrono::steady_clock::now() - begin));
    });
  }

  TensorResults wait() override {
    TensorResults results;
    results.reserve(members_.size());
    std::exception_ptr first_error;
    for (auto& each : members_) {
      PendingTensor<AnyHandle> own = std::move(each);  // freed as soon as it is done
      try {
        results.push_back(collect(own));
      } catch (...) {
        if (!first_error) first_error = std::current_exception();
      }
    }
    if (first_error) {
      results.clear();  // before the stack unwinds: nothing can be in flight on them
      std::rethrow_exception(first_error);
    }
    return results;
  }

 private:
  c10::SmallVector<PendingTensor<AnyHandle>, 1> members_;
};

std::string member_name(const std::string& name, std::size_t index) {
  return name.empty() ? name : name + "." + std::to_string(index);
}

void check(const CallTensors& call, const std::string& name) {
  const at::TensorList tensors = call.tensors;
  if (!call.is_group) return check_dense(name, tensors[0]);
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    check_dense(member_name(name, i), tensors[i]);
    if (tensors[i].device() == tensors[0].device()) continue;
    refuse_tensor(member_name(name, i), "is on " + tensors[i].device().str() +
                                            ", and the group's first one on " +
                                            tensors[0].device().str() +
                                            "; expected one device for all tensors of a group");
  }
}

/// Then they cannot all be reduced where they lie, at the same time.
bool overlap(at::TensorList tensors) {
  if (tensors.size() < 2) return false;
  std::vector<std::pair<std::uintptr_t, std::size_t>> ranges;
  ranges.reserve(tensors.size());
  for (const at::Tensor& each : tensors) {
    const bool contiguous = each.is_contiguous();
    const void* const data = contiguous ? each.data_ptr() : each.storage().data();
    ranges.emplace_back(reinterpret_cast<std::uintptr_t>(data),
                        contiguous ? each.nbytes() : each.storage().nbytes());
  }
  std::sort(ranges.begin(), ranges.end());
  return std::adjacent_find(ranges.begin(), ranges.end(), [](const auto& one, const auto& next) {
           return next.first - one.first < one.second;
         }) != ranges.end();
}

template <class Options>
Options member_options(const CallTensors& call, Options options, std::size_t index) {
  if (call.is_group) options.name = member_name(options.name, index);
  if constexpr (std::is_same_v<Options, AlltoallOptions>) {
    if (!call.splits.empty()) options.splits = call.splits[index];
  }
  return options;
}

}  // namespace

template <class Options>
std::unique_ptr<PendingTensors> start_collective(const Context& context, const CallTensors& call,
                                                 const Options& options, Place place) {
  check(call, options.name);
  start_tensor_arena(context);
  share_device_memory(context);
  const torch::NoGradGuard no_grad;
  using AnyHandle = decltype(submit(context, {}, options));
  auto pending = std::make_unique<PendingGroup<AnyHandle>>(call.tensors.size());
  const bool copied = place == Place::in_place && overlap(call.tensors);
  const auto add = [&](const torch::Tensor& tensor, const Options& own) {
    const auto target = place == Place::in_place ? tensor : operand(context, tensor, own);
    const auto contiguous =
        copied ? tensor.clone(torch::MemoryFormat::Contiguous) : target.contiguous();
    pending->add(context, on_device(contiguous, working_device(context, tensor.device())), target,
                 own);
  };
  try {
    if (!call.is_group && call.splits.empty()) {
      add(call.tensors[0], options);
    } else {
      for (std::size_t i = 0; i < call.tensors.size(); ++i) {
        add(call.tensors[i], member_options(call, options, i));
      }
    }
  } catch (...) {
    pending.reset();  // here, as no handle waits while an exception unwinds the stack
    throw;
  }
  return pending;
}

using Pending = std::unique_ptr<PendingTensors>;
template Pending start_collective(const Context&, const CallTensors&, const AllreduceOptions&,
                                  Place);
template Pending start_collective(const Context&, const CallTensors&, const BroadcastOptions&,
                                  Place);
template Pending start_collective(const Context&, const CallTensors&, const AllgatherOptions&,
                                  Place);
template Pending start_collective(const Context&, const CallTensors&, const AlltoallOptions&,
                                  Place);
template Pending start_collective(const Context&, const CallTensors&, const ReduceScatterOptions&,
                                  Place);

}  // namespace hora::internal

namespace hora {

template <class T>
CollectiveHandle<T>::CollectiveHandle(std::unique_ptr<internal::PendingTensors> pending) noexcept
    : pending_(std::move(pending)) {}
template <class T>
CollectiveHandle<T>::CollectiveHandle() noexcept = default;
template <class T>
CollectiveHandle<T>::CollectiveHandle(CollectiveHandle&&) noexcept = default;
template <class T>
CollectiveHandle<T>& CollectiveHandle<T>::operator=(CollectiveHandle&&) noexcept = default;
template <class T>
CollectiveHandle<T>::~CollectiveHandle() = default;

template <class T>
bool CollectiveHandle<T>::ready() const {
  return !pending_ || pending_->ready();
}

template <class T>
bool CollectiveHandle<T>::wait_for(std::chrono::nanoseconds timeout) const {
  return !pending_ || pending_->wait_for(timeout);
}

template <class T>
T CollectiveHandle<T>::wait() {
  if (!pending_) {
    throw Error(ErrorCode::invalid_use,
                "there is nothing to wait for: this tensor's handle was waited for already, or "
                "moved from");
  }
  return internal::results_as<T>(std::exchange(pending_, nullptr)->wait());
}

template class CollectiveHandle<torch::Tensor>;
template class CollectiveHandle<AlltoallResult>;
template class CollectiveHandle<std::vector<torch::Tensor>>;
template class CollectiveHandle<std::vector<AlltoallResult>>;

}  // namespace hora
