#include <hora/error.h>
#include <hora/groups.h>

#include <algorithm>
#include <exception>
#include <string>
#include <utility>

namespace hora {
namespace {

/// `submit(tensor, options)` gives a handle.
template <class Options, class Submit>
Handles submit_all(std::span<const TensorView> tensors, Options options, Submit&& submit) {
  const std::string name = std::move(options.name);
  std::vector<Handle> handles;
  handles.reserve(tensors.size());
  try {
    for (std::size_t i = 0; i < tensors.size(); ++i) {
      options.name = name.empty() ? name : name + "." + std::to_string(i);
      handles.push_back(submit(tensors[i], options));
    }
  } catch (...) {
    handles.clear();  // here, as no handle waits while an exception unwinds the stack
    throw;
  }
  return Handles(std::move(handles));
}

}  // namespace

Handles::Handles(std::vector<Handle> handles) noexcept
    : handles_(std::move(handles)), valid_(true) {}

Handles::Handles(Handles&& other) noexcept
    : handles_(std::move(other.handles_)), valid_(std::exchange(other.valid_, false)) {}

Handles& Handles::operator=(Handles&& other) noexcept {
  handles_ = std::move(other.handles_);
  valid_ = std::exchange(other.valid_, false);
  return *this;
}

bool Handles::ready() const {
  return std::ranges::all_of(handles_, [](const Handle& handle) { return handle.ready(); });
}

template <class Wait>
void Handles::for_all(Wait&& wait) {
  if (!std::exchange(valid_, false)) {
    throw Error(ErrorCode::invalid_use,
                "there is nothing to wait for: this group was waited for already, or moved from");
  }
  std::exception_ptr first_error;
  for (Handle& handle : std::exchange(handles_, {})) {
    try {
      wait(handle);
    } catch (...) {
      if (!first_error) first_error = std::current_exception();
    }
  }
  if (first_error) std::rethrow_exception(first_error);
}

void Handles::wait() {
  for_all([](Handle& handle) { handle.wait(); });
}
void Handles::wait(void* stream) {
  for_all([stream](Handle& handle) { handle.wait(stream); });
}
void Handles::synchronize() {
  for_all([](Handle& handle) { handle.synchronize(); });
}

bool Handles::wait_for(std::chrono::nanoseconds timeout) const {
  const auto begin = std::chrono::steady_clock::now();
  return std::ranges::all_of(handles_, [&](const Handle& handle) {
    return handle.wait_for(timeout - (std::chrono::steady_clock::now() - begin));
  });
}

Handles grouped_allreduce_async(const Context& context, std::span<const TensorView> tensors,
                                const AllreduceOptions& options) {
  return submit_all(tensors, options, [&](const TensorView& tensor, const AllreduceOptions& mine) {
    return allreduce_async(context, tensor, mine);
  });
}
void grouped_allreduce(const Context& context, std::span<const TensorView> tensors,
                       const AllreduceOptions& options) {
  grouped_allreduce_async(context, tensors, options).wait();
}

Handles grouped_broadcast_async(const Context& context, std::span<const TensorView> tensors,
                                const BroadcastOptions& options) {
  return submit_all(tensors, options, [&](const TensorView& tensor, const BroadcastOptions& mine) {
    return broadcast_async(context, tensor, mine);
  });
}
void grouped_broadcast(const Context& context, std::span<const TensorView> tensors,
                       const BroadcastOptions& options) {
  grouped_broadcast_async(context, tensors, options).wait();
}

}  // namespace hora
