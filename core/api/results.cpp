// Handles and results, of one collective and of groups.
#include "core/api/results.h"

#include <hora/groups.h>
#include <spdlog/fmt/fmt.h>

#include "core/api/internals.h"
#include "core/base/text.h"

namespace hora {
using namespace internal;
namespace {

/// Starts each tensor's collective under its own name by `start`, a function of collectives.h.
template <class View, class Options, class Single>
BasicGroupHandle<Single> start_all(const Context& context, std::span<const View> tensors,
                                   Options options,
                                   Single (*start)(const Context&, const View&, const Options&)) {
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

Result::Result(std::shared_ptr<ResultMemory> memory) noexcept : memory_(std::move(memory)) {}

const TensorView& Result::held() const {
  if (!memory_) throw Error(ErrorCode::invalid_use, "this hora::Result is empty");
  return memory_->view();
}

const std::vector<std::int64_t>& Result::rows() const {
  held();
  return memory_->rows();
}

void Result::check_type(DataType asked) const {
  if (asked == type()) return;
  throw Error(ErrorCode::invalid_argument,
              fmt::format("this hora::Result holds {}, not {}", name_of(type()), name_of(asked)));
}

ResultHandle::ResultHandle(Handle handle, std::shared_ptr<ResultMemory> memory) noexcept
    : memory_(std::move(memory)), handle_(std::move(handle)) {}

Result ResultHandle::finish(std::optional<void*> stream, Until until) {
  handle_.finish(stream, until);
  if (stream) memory_->set_stream(*stream);
  memory_->collect();
  return Access::result(std::exchange(memory_, nullptr));
}

void ResultMemory::collect() {
  if (form_.output) {
    check_output_length(form_.name, form_.output->size(), bytes_, form_.view.type);
  }
  take();
  collected_ = true;
}

HostResult::HostResult(NodeMemory& memory, ResultForm form, DeviceHeap* heap)
    : ResultMemory(std::move(form)), memory_(memory), heap_(heap) {
  output_is_shared_ = form_.output && !form_.output->empty() &&
                      memory_.find(form_.output->data(), form_.output->size());
}

std::byte* HostResult::expect(std::size_t bytes) {
  if (heap_) return nullptr;
  output_is_expected_ = output_is_shared_ && fits_output(bytes);
  if (output_is_expected_) return form_.output->data();
  return expected_ = memory_.allocate(bytes).data;
}

std::byte* HostResult::place(std::size_t bytes) {
  // A result that is not as it was expected must lie elsewhere: peers read what lies there.
  const bool as_expected = is_even(rows_);
  if (output_is_shared_ && fits_output(bytes) && (as_expected || !output_is_expected_)) {
    return form_.output->data();
  }
  block_ =
      expected_ && as_expected ? std::exchange(expected_, nullptr) : memory_.allocate(bytes).data;
  return block_;
}

void HostResult::take() {
  if (!block_ || !(form_.output || heap_)) return;
  if (!form_.output) on_device_ = heap_->allocate(bytes_, form_.view.stream);
  std::byte* const data = form_.output ? form_.output->data() : on_device_;
  if (heap_) {
    heap_->to_device(data, block_, bytes_, form_.view.stream);
  } else {
    std::memcpy(data, block_, bytes_);
  }
  memory_.release(std::exchange(block_, nullptr));
  form_.view.data = data;
}

Handle::Handle(std::shared_ptr<Engine> engine, std::shared_ptr<Operation> operation) noexcept
    : engine_(std::move(engine)), operation_(std::move(operation)) {}

Handle& Handle::operator=(Handle&& other) noexcept {
  Handle dropped(std::move(*this));
  engine_ = std::move(other.engine_);
  operation_ = std::move(other.operation_);
  return *this;
}

Handle::~Handle() {
  if (!valid() || engine_->is_forked()) return;
  if (std::uncaught_exceptions() > 0) {
    engine_->remaining().detach(operation_);
    return;
  }
  try {
    engine_->remaining().drop(*operation_);
  } catch (const std::exception&) {
    // A destructor does not throw, not even where logging fails.
  }
}

bool Handle::ready() const {
  return !valid() || operation_->finished();
}

bool Handle::wait_for(std::chrono::nanoseconds timeout) const {
  return ready() || engine_->remaining().wait_for(*operation_, timeout);
}

void Handle::finish(std::optional<void*> stream, Until until) {
  if (!valid()) {
    throw Error(ErrorCode::invalid_use,
                "there is nothing to wait for: this handle was waited for already, or moved from");
  }
  auto operation = std::exchange(operation_, nullptr);
  const auto engine = std::exchange(engine_, nullptr);
  if (stream) operation->memory.set_stream(*stream);
  engine->remaining();
  until == Until::there ? engine->synchronize(*operation) : engine->wait(*operation);
}

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
auto BasicGroupHandle<Single>::finish(std::optional<void*> stream, Until until) -> Results {
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
        results.push_back(handle.finish(stream, until));
      } else {
        handle.finish(stream, until);
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
  return start_all<TensorView>(context, tensors, options, allreduce_async);
}
void grouped_allreduce(const Context& context, Views tensors, const AllreduceOptions& options) {
  grouped_allreduce_async(context, tensors, options).wait();
}

GroupHandle grouped_broadcast_async(const Context& context, Views tensors,
                                    const BroadcastOptions& options) {
  return start_all<TensorView>(context, tensors, options, broadcast_async);
}
void grouped_broadcast(const Context& context, Views tensors, const BroadcastOptions& options) {
  grouped_broadcast_async(context, tensors, options).wait();
}

ResultGroupHandle grouped_allgather_async(const Context& context, const ConstViews& tensors,
                                          const AllgatherOptions& options) {
  return start_all<ConstTensorView>(context, tensors, options, allgather_async);
}
std::vector<Result> grouped_allgather(const Context& context, const ConstViews& tensors,
                                      const AllgatherOptions& options) {
  return grouped_allgather_async(context, tensors, options).wait();
}

ResultGroupHandle grouped_alltoall_async(const Context& context, const ConstViews& tensors,
                                         const AlltoallOptions& options) {
  return start_all<ConstTensorView>(context, tensors, options, alltoall_async);
}
std::vector<Result> grouped_alltoall(const Context& context, const ConstViews& tensors,
                                     const AlltoallOptions& options) {
  return grouped_alltoall_async(context, tensors, options).wait();
}

ResultGroupHandle grouped_reduce_scatter_async(const Context& context, const ConstViews& tensors,
                                               const ReduceScatterOptions& options) {
  return start_all<ConstTensorView>(context, tensors, options, reduce_scatter_async);
}
std::vector<Result> grouped_reduce_scatter(const Context& context, const ConstViews& tensors,
                                           const ReduceScatterOptions& options) {
  return grouped_reduce_scatter_async(context, tensors, options).wait();
}

}  // namespace hora
