// Handles and results, of one collective and of groups.
#include "core/api/results.h"

#include <hora/groups.h>

#include "core/api/internals.h"
#include "core/base/text.h"

namespace hora {
using namespace internal;
namespace {

const ResultMemory& held(const std::shared_ptr<ResultMemory>& memory) {
  if (!memory) throw Error(ErrorCode::invalid_use, "this hora::Result is empty");
  return *memory;
}

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

std::byte* Result::data() const {
  return held(memory_).data();
}
DataType Result::type() const {
  return held(memory_).view().type;
}
const Shape& Result::shape() const {
  return held(memory_).view().shape;
}
const std::vector<std::int64_t>& Result::rows() const {
  return held(memory_).rows();
}
TensorView Result::view() const {
  return held(memory_).view();
}

void Result::check_type(DataType asked) const {
  if (asked == type()) return;
  throw Error(ErrorCode::invalid_argument, "this hora::Result holds " +
                                               std::string(name_of(type())) + ", not " +
                                               std::string(name_of(asked)));
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
  if (form_.output && !fits_output(bytes_)) {
    throw Error(
        ErrorCode::invalid_argument,
        tensor_text(form_.name) + ": " + output_text(form_.output->size(), bytes_, form_.view.type),
        -1, form_.name);
  }
  take();
  collected_ = true;
}

HostResult::HostResult(NodeMemory& memory, ResultForm form)
    : ResultMemory(std::move(form)), memory_(memory) {
  output_is_shared_ = form_.output && !form_.output->empty() &&
                      memory_.find(form_.output->data(), form_.output->size());
}

std::byte* HostResult::expect(std::size_t bytes) {
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
  if (!form_.output || !block_) return;
  std::memcpy(form_.output->data(), block_, bytes_);
  memory_.release(std::exchange(block_, nullptr));
  form_.view.data = form_.output->data();
}

StagedResult::StagedResult(NodeMemory& memory, DeviceHeap& heap, ResultForm form,
                           const std::byte* input, std::size_t bytes, void* stream)
    : ResultMemory(std::move(form)), memory_(memory), heap_(heap) {
  if (bytes == 0) return;
  input_ = allocate_host(bytes);
  try {
    heap_.to_host(input_, input, bytes, stream);
  } catch (...) {
    release_host(input_);
    throw;
  }
}

StagedResult::~StagedResult() {
  if (block_ && !may_be_in_flight()) heap_.release(block_, form_.view.stream);
  release_host(staging_);
  release_host(input_);
}

void StagedResult::take() {
  release_host(input_);
  if (bytes_ == 0) return;
  std::byte* const data =
      form_.output ? form_.output->data() : (block_ = heap_.allocate(bytes_, form_.view.stream));
  heap_.to_device(data, staging_, bytes_, form_.view.stream);
  form_.view.data = data;
  release_host(staging_);
}

void StagedResult::release_host(std::byte*& block) {
  if (block) memory_.release(std::exchange(block, nullptr));
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
