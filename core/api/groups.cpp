#include <hora/error.h>
#include <hora/groups.h>

#include <algorithm>
#include <exception>
#include <string>
#include <utility>

namespace hora {
namespace {

/// Starts each tensor's collective under its own name by `start`, a function of collectives.h.
template <class View, class AnyView, class Options, class Single>
BasicGroupHandle<Single> start_all(const Context& context, ViewSpan<View> tensors, Options options,
                                   Single (*start)(const Context&, const AnyView&,
                                                   const Options&)) {
  const std::string name = std::move(options.name);
  std::vector<Single> handles;
  handles.reserve(tensors.size());
  try {
    for (std::size_t i = 0; i < tensors.size(); ++i) {
      options.name = name.empty() ? name : name + "." + std::to_string(i);
      handles.push_back(start(context, tensors[i], options));
    }
  } catch (...) {
    handles.clear();  // here, as no handle waits while an exception unwinds the stack
    throw;
  }
  return BasicGroupHandle<Single>(std::move(handles));
}

}  // namespace

template <class Single>
BasicGroupHandle<Single>::BasicGroupHandle(std::vector<Single> handles) noexcept
    : handles_(std::move(handles)), valid_(true) {}

template <class Single>
BasicGroupHandle<Single>::BasicGroupHandle(BasicGroupHandle&& other) noexcept
    : handles_(std::move(other.handles_)), valid_(std::exchange(other.valid_, false)) {}

template <class Single>
BasicGroupHandle<Single>& BasicGroupHandle<Single>::operator=(BasicGroupHandle&& other) noexcept {
  handles_ = std::move(other.handles_);
  valid_ = std::exchange(other.valid_, false);
  return *this;
}

template <class Single>
bool BasicGroupHandle<Single>::ready() const {
  return std::ranges::all_of(handles_, [](const Single& handle) { return handle.ready(); });
}

template <class Single>
template <class Wait>
auto BasicGroupHandle<Single>::for_all(Wait&& wait) -> Results {
  if (!std::exchange(valid_, false)) {
    throw Error(ErrorCode::invalid_use,
                "there is nothing to wait for: this group was waited for already, or moved from");
  }
  constexpr bool kHasResults = !std::is_void_v<Results>;
  std::vector<Result> results;
  if constexpr (kHasResults) results.reserve(handles_.size());
  std::exception_ptr first_error;
  for (Single& handle : std::exchange(handles_, {})) {
    try {
      if constexpr (kHasResults) {
        results.push_back(wait(handle));
      } else {
        wait(handle);
      }
    } catch (...) {
      if (!first_error) first_error = std::current_exception();
    }
  }
  if (first_error) {
    // Nothing can be in flight on what the caller never had: freed before the stack unwinds.
    results.clear();
    std::rethrow_exception(first_error);
  }
  if constexpr (kHasResults) return results;
}

template <class Single>
auto BasicGroupHandle<Single>::wait() -> Results {
  return for_all([](Single& handle) { return handle.wait(); });
}
template <class Single>
auto BasicGroupHandle<Single>::wait(void* stream) -> Results {
  return for_all([stream](Single& handle) { return handle.wait(stream); });
}
template <class Single>
auto BasicGroupHandle<Single>::synchronize() -> Results {
  return for_all([](Single& handle) { return handle.synchronize(); });
}

template <class Single>
bool BasicGroupHandle<Single>::wait_for(std::chrono::nanoseconds timeout) const {
  const auto begin = std::chrono::steady_clock::now();
  return std::ranges::all_of(handles_, [&](const Single& handle) {
    return handle.wait_for(timeout - (std::chrono::steady_clock::now() - begin));
  });
}

template class BasicGroupHandle<Handle>;
template class BasicGroupHandle<ResultHandle>;

using Views = ViewSpan<TensorView>;
using ConstViews = ViewSpan<ConstTensorView>;

GroupHandle grouped_allreduce_async(const Context& context, Views tensors,
                                    const AllreduceOptions& options) {
  return start_all(context, tensors, options, allreduce_async);
}
void grouped_allreduce(const Context& context, Views tensors, const AllreduceOptions& options) {
  grouped_allreduce_async(context, tensors, options).wait();
}

GroupHandle grouped_broadcast_async(const Context& context, Views tensors,
                                    const BroadcastOptions& options) {
  return start_all(context, tensors, options, broadcast_async);
}
void grouped_broadcast(const Context& context, Views tensors, const BroadcastOptions& options) {
  grouped_broadcast_async(context, tensors, options).wait();
}

ResultGroupHandle grouped_allgather_async(const Context& context, ConstViews tensors,
                                          const AllgatherOptions& options) {
  return start_all(context, tensors, options, allgather_async);
}
ResultGroupHandle grouped_allgather_async(const Context& context, Views tensors,
                                          const AllgatherOptions& options) {
  return start_all(context, tensors, options, allgather_async);
}
std::vector<Result> grouped_allgather(const Context& context, ConstViews tensors,
                                      const AllgatherOptions& options) {
  return grouped_allgather_async(context, tensors, options).wait();
}
std::vector<Result> grouped_allgather(const Context& context, Views tensors,
                                      const AllgatherOptions& options) {
  return grouped_allgather_async(context, tensors, options).wait();
}

ResultGroupHandle grouped_alltoall_async(const Context& context, ConstViews tensors,
                                         const AlltoallOptions& options) {
  return start_all(context, tensors, options, alltoall_async);
}
ResultGroupHandle grouped_alltoall_async(const Context& context, Views tensors,
                                         const AlltoallOptions& options) {
  return start_all(context, tensors, options, alltoall_async);
}
std::vector<Result> grouped_alltoall(const Context& context, ConstViews tensors,
                                     const AlltoallOptions& options) {
  return grouped_alltoall_async(context, tensors, options).wait();
}
std::vector<Result> grouped_alltoall(const Context& context, Views tensors,
                                     const AlltoallOptions& options) {
  return grouped_alltoall_async(context, tensors, options).wait();
}

ResultGroupHandle grouped_reduce_scatter_async(const Context& context, ConstViews tensors,
                                               const ReduceScatterOptions& options) {
  return start_all(context, tensors, options, reduce_scatter_async);
}
ResultGroupHandle grouped_reduce_scatter_async(const Context& context, Views tensors,
                                               const ReduceScatterOptions& options) {
  return start_all(context, tensors, options, reduce_scatter_async);
}
std::vector<Result> grouped_reduce_scatter(const Context& context, ConstViews tensors,
                                           const ReduceScatterOptions& options) {
  return grouped_reduce_scatter_async(context, tensors, options).wait();
}
std::vector<Result> grouped_reduce_scatter(const Context& context, Views tensors,
                                           const ReduceScatterOptions& options) {
  return grouped_reduce_scatter_async(context, tensors, options).wait();
}

}  // namespace hora
