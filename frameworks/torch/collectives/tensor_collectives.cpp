// Collectives on tensors: those under way (PendingTensors), those that autograd records, and the
// public functions over them.
#include <ATen/core/DimVector.h>
#include <ATen/core/grad_mode.h>
#include <c10/util/SmallVector.h>
#include <c10/util/StringUtil.h>
#include <hora/torch/groups.h>
#include <hora/torch/sparse.h>
#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <memory>
#include <numeric>
#include <optional>
#include <span>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "core/base/text.h"
#include "frameworks/torch/memory/tensor_arena.h"
#include "frameworks/torch/tensor_view.h"
#include "frameworks/torch/wire_type.h"

namespace hora::internal {

using Tensors = std::vector<torch::Tensor>;

/// A call's results, by tensor; rows only of operations whose core calls give a Result.
using TensorResults = c10::SmallVector<AlltoallResult, 1>;

/// Thread rule: as CollectiveHandle. The destructor waits, as Handle's.
class PendingTensors {
 public:
  virtual ~PendingTensors() = default;
  virtual bool ready() const = 0;
  /// As Handle::wait_for(): true where all are done.
  virtual bool wait_for(std::chrono::nanoseconds timeout) const = 0;
  /// Once. Waits for all of them, then throws the first one's error.
  virtual TensorResults wait() = 0;
};

/// Access of hora's own sources to the public handles, whose friend it is.
struct TensorAccess {
  template <class T>
  static CollectiveHandle<T> handle(std::unique_ptr<PendingTensors> pending) {
    return CollectiveHandle<T>(std::move(pending));
  }
};

namespace {

using Rows = std::vector<std::int64_t>;

/// The tensors of one call. A single one is a group of one that travels under the name itself.
struct CallTensors {
  at::TensorList tensors;
  bool is_group = false;              ///< tensor i travels under "<name>.<i>"
  std::span<const Rows> splits = {};  ///< of an alltoall: by tensor, in place of the options'
};

/// As the public functions give them: T is torch::Tensor, AlltoallResult, or a vector of either.
template <class T>
T results_as(TensorResults&& results) {
  if constexpr (std::is_same_v<T, torch::Tensor>) {
    return std::move(results[0].tensor);
  } else if constexpr (std::is_same_v<T, AlltoallResult>) {
    return std::move(results[0]);
  } else if constexpr (std::is_same_v<T, Tensors>) {
    Tensors tensors;
    tensors.reserve(results.size());
    for (AlltoallResult& each : results) tensors.push_back(std::move(each.tensor));
    return tensors;
  } else {
    return {std::make_move_iterator(results.begin()), std::make_move_iterator(results.end())};
  }
}

enum class Place { in_place, out_of_place };

// The operations: how the core's call is named, and, out of place, what it works on.

template <class Options>
auto submit(const Context& context, const TensorView& view, const Options& options) {
  if constexpr (std::is_same_v<Options, AllreduceOptions>) {
    return allreduce_async(context, view, options);
  } else if constexpr (std::is_same_v<Options, BroadcastOptions>) {
    return broadcast_async(context, view, options);
  } else if constexpr (std::is_same_v<Options, AllgatherOptions>) {
    return allgather_async(context, view, options);
  } else if constexpr (std::is_same_v<Options, AlltoallOptions>) {
    return alltoall_async(context, view, options);
  } else {
    return reduce_scatter_async(context, view, options);
  }
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

/// Starts the operation that `options` are of. Throws Error(invalid_argument) before any starts
/// where the tensors are not all dense and on one device. Where one's start throws, those before it
/// have been waited for: every rank throws at the same tensor.
template <class Options>
std::unique_ptr<PendingTensors> start_collective(const Context& context, const CallTensors& call,
                                                 const Options& options,
                                                 Place place = Place::out_of_place) {
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

/// Whether grad mode is on, and an input requires a gradient.
bool is_recorded(at::TensorList inputs) {
  return torch::GradMode::is_enabled() &&
         std::any_of(inputs.begin(), inputs.end(), [](const auto& t) { return t.requires_grad(); });
}

/// start_collective() out of place and its wait(), recorded where is_recorded(call.tensors): with
/// the gradients of collectives.h. A result that no loss uses has a gradient of zeros.
template <class Options>
TensorResults run_collective(const Context& context, const CallTensors& call,
                             const Options& options);

/// Kept by a recorded call for its gradients.
template <class Options>
struct Recorded : torch::CustomClassHolder {
  Recorded(const Context& its_context, const Options& its_options, const CallTensors& call)
      : context(its_context), options(its_options), is_group(call.is_group) {
    for (const torch::Tensor& tensor : call.tensors) {
      shapes.emplace_back(tensor.sizes().begin(), tensor.sizes().end());
    }
  }
  const Context& context;
  Options options;
  bool is_group;
  std::vector<at::DimVector> shapes;  ///< the inputs'
  std::vector<Rows> rows;             ///< the results'
};

/// The name of a backward collective derives from the forward's, so that backward is matched on all
/// ranks whatever the order; unnamed stays unnamed.
std::string backward_name(const std::string& name) {
  return name.empty() ? name : name + ".backward";
}

/// A collective of backward, recorded in turn where a graph of it is asked for.
template <class Forward, class Options>
Tensors run_backward(const Recorded<Forward>& forward, const Tensors& tensors, Options options,
                     std::span<const Rows> splits = {}) {
  options.name = backward_name(forward.options.name);
  options.process_set = forward.options.process_set;
  return results_as<Tensors>(run_collective(
      forward.context, {.tensors = tensors, .is_group = forward.is_group, .splits = splits},
      options));
}

void check_linear(const std::string& name, ReduceOp op) {
  if (op == ReduceOp::sum || op == ReduceOp::average) return;
  refuse_tensor(name, "a reduction by " + std::string(name_of(op)) +
                          " has no gradient; expected sum or average, or a call under "
                          "torch::NoGradGuard");
}

// The gradients of the inputs, made of those of the results (collectives.h).

Tensors gradients_of(const Recorded<AllreduceOptions>& forward, const Tensors& given) {
  check_linear(forward.options.name, forward.options.op);
  return run_backward(forward, given, forward.options);
}

Tensors gradients_of(const Recorded<BroadcastOptions>& forward, const Tensors& given) {
  Tensors sums = run_backward(forward, given, AllreduceOptions{.op = ReduceOp::sum});
  if (forward.context.rank() == forward.options.root) return sums;
  for (torch::Tensor& each : sums) each = torch::zeros_like(each);
  return sums;
}

Tensors gradients_of(const Recorded<AllgatherOptions>& forward, const Tensors& given) {
  Tensors averages = run_backward(forward, given, AllreduceOptions{.op = ReduceOp::average});
  const auto rank_in_set = rank_in(forward.context, forward.options.process_set);
  for (std::size_t i = 0; i < averages.size(); ++i) {
    const auto own = forward.rows[i].begin() + rank_in_set;
    const std::int64_t first = std::accumulate(forward.rows[i].begin(), own, std::int64_t{0});
    // A copy: a view would keep all ranks' rows.
    averages[i] = averages[i].narrow(0, first, *own).clone().view(forward.shapes[i]);
  }
  return averages;
}

Tensors gradients_of(const Recorded<AlltoallOptions>& forward, const Tensors& given) {
  return run_backward(forward, given, forward.options, forward.rows);
}

Tensors gradients_of(const Recorded<ReduceScatterOptions>& forward, const Tensors& given) {
  const ReduceScatterOptions& options = forward.options;
  check_linear(options.name, options.op);
  const int ranks = options.op == ReduceOp::sum ? size_of(forward.context, options.process_set) : 1;
  Tensors scaled;
  for (const torch::Tensor& each : given) {
    scaled.push_back(each * (ranks * options.prescale * options.postscale));
  }
  return run_backward(forward, scaled, AllgatherOptions{});
}

template <class Options>
struct Differentiable : torch::autograd::Function<Differentiable<Options>> {
  static Tensors forward(torch::autograd::AutogradContext* context, at::TensorList,
                         const CallTensors& call,
                         const c10::intrusive_ptr<Recorded<Options>>& recorded) {
    context->saved_data["recorded"] = c10::IValue::make_capsule(recorded);
    TensorResults results = start_collective(recorded->context, call, recorded->options)->wait();
    for (AlltoallResult& each : results) {
      recorded->rows.push_back(std::move(each.received_splits));
    }
    return results_as<Tensors>(std::move(results));
  }

  static Tensors backward(torch::autograd::AutogradContext* context, Tensors given) {
    const auto held = context->saved_data["recorded"].toCapsule();
    Tensors gradients = gradients_of(static_cast<const Recorded<Options>&>(*held), given);
    gradients.resize(gradients.size() + 2);  // `call` and `recorded` have none
    return gradients;
  }
};

template <class Options>
TensorResults run_collective(const Context& context, const CallTensors& call,
                             const Options& options) {
  if (!is_recorded(call.tensors)) return start_collective(context, call, options)->wait();
  const auto recorded = c10::make_intrusive<Recorded<Options>>(context, options, call);
  Tensors outputs = Differentiable<Options>::apply(call.tensors, call, recorded);
  TensorResults results;
  for (std::size_t i = 0; i < outputs.size(); ++i) {
    results.push_back({std::move(outputs[i]), recorded->rows[i]});
  }
  return results;
}

}  // namespace
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

using namespace internal;
namespace {

using torch::Tensor;

void check_sparse(const torch::Tensor& tensor, const AllreduceOptions& options) {
  if (!tensor.defined()) refuse_tensor(options.name, "is undefined; expected a sparse one");
  if (tensor.layout() != torch::kSparse) {
    refuse_tensor(options.name, "is not sparse (COO); hora::allreduce takes dense ones");
  }
  if (options.op != ReduceOp::sum && options.op != ReduceOp::average) {
    refuse_tensor(options.name, "a reduction by " + std::string(name_of(options.op)) +
                                    " of sparse tensors is not defined; expected sum or average");
  }
  const bool scaled =
      options.op == ReduceOp::average || options.prescale != 1.0 || options.postscale != 1.0;
  if (scaled && !tensor.is_floating_point()) {
    refuse_tensor(options.name, std::string("an average or a scale of ") +
                                    torch::toString(tensor.scalar_type()) +
                                    " is not defined; ask for ReduceOp::sum");
  }
}

/// Row 0 holds the sizes, so that they can be compared; then one row an element.
torch::Tensor sizes_and_indices(const torch::Tensor& tensor) {
  const auto sizes = tensor.sizes().slice(0, static_cast<std::size_t>(tensor.sparse_dim()));
  const auto first = torch::tensor(sizes, torch::kLong).to(tensor.device()).unsqueeze(0);
  return torch::cat({first, tensor.indices().t()});
}

std::string sizes_text(const torch::Tensor& row) {
  const torch::Tensor host = row.cpu().contiguous();
  return c10::str(
      torch::IntArrayRef(host.data_ptr<std::int64_t>(), static_cast<std::size_t>(host.numel())));
}

/// Over the allgathers of indices and of values.
class PendingSparse final : public PendingTensors {
 public:
  PendingSparse(std::unique_ptr<PendingTensors> gather, const AllreduceOptions& options,
                std::vector<int> ranks, torch::Tensor tensor)
      : options_(options),
        ranks_(std::move(ranks)),
        tensor_(std::move(tensor)),
        gather_(std::move(gather)) {}

  bool ready() const override { return gather_->ready(); }
  bool wait_for(std::chrono::nanoseconds timeout) const override {
    return gather_->wait_for(timeout);
  }

  TensorResults wait() override {
    const torch::NoGradGuard no_grad;
    const TensorResults gathered = gather_->wait();
    const torch::Tensor sum =
        torch::sparse_coo_tensor(indices_in(gathered[0]), gathered[1].tensor, tensor_.sizes())
            .coalesce();
    const double scale =
        options_.postscale /
        (options_.op == ReduceOp::average ? static_cast<double>(ranks_.size()) : 1.0);
    if (scale != 1.0) sum.values().mul_(scale);
    return {{sum, {}}};
  }

 private:
  torch::Tensor indices_in(const AlltoallResult& gathered) const {
    std::vector<torch::Tensor> parts;
    std::int64_t first = 0;
    for (std::size_t i = 0; i < ranks_.size(); ++i) {
      const std::int64_t rows = gathered.received_splits[i];
      check_sizes(gathered.tensor[0], gathered.tensor[first], ranks_[i]);
      parts.push_back(gathered.tensor.narrow(0, first + 1, rows - 1));
      first += rows;
    }
    return torch::cat(parts).t();
  }

  void check_sizes(const torch::Tensor& of_first, const torch::Tensor& other, int rank) const {
    if (torch::equal(of_first, other)) return;
    throw Error(ErrorCode::mismatch,
                tensor_text(options_.name) + ": ranks disagree about its sizes: rank " +
                    std::to_string(ranks_.front()) + " has " + sizes_text(of_first) + ", rank " +
                    std::to_string(rank) + " has " + sizes_text(other) +
                    " in the dimensions that have indices",
                rank, options_.name);
  }

  AllreduceOptions options_;
  std::vector<int> ranks_;
  torch::Tensor tensor_;
  std::unique_ptr<PendingTensors> gather_;
};

CallTensors single(const Tensor& tensor) {
  return {.tensors = tensor};
}
CallTensors group(const Tensors& tensors) {
  return {.tensors = tensors, .is_group = true};
}

template <class T, class Options>
T run(const Context& context, const CallTensors& call, const Options& options) {
  return results_as<T>(run_collective(context, call, options));
}
template <class T, class Options>
CollectiveHandle<T> start(const Context& context, const CallTensors& call, const Options& options,
                          Place place = Place::out_of_place) {
  return TensorAccess::handle<T>(start_collective(context, call, options, place));
}

/// The type that a tensor travels in.
c10::ScalarType travelling_type(const std::string& name, const Tensor& tensor,
                                Compression compression) {
  check_dense(name, tensor);
  const std::optional<DataType> type = to_data_type(tensor.scalar_type());
  if (!type || !is_floating_point(*type)) return tensor.scalar_type();
  return to_scalar_type(wire_type(compression, *type));
}

TensorResults run_compressed(const Context& context, const CallTensors& call,
                             const AllreduceOptions& options, Compression compression) {
  if (const std::string wrong = wrong_with(compression); !wrong.empty()) {
    refuse_tensor(options.name, wrong);
  }
  const auto type_of = [&](const auto& t) { return travelling_type(options.name, t, compression); };
  const bool nothing_to_do =
      std::all_of(call.tensors.begin(), call.tensors.end(),
                  [&](const auto& t) { return type_of(t) == t.scalar_type(); });
  if (nothing_to_do) return run_collective(context, call, options);
  const bool recorded = is_recorded(call.tensors);
  Tensors sent;
  for (const Tensor& tensor : call.tensors) {
    sent.push_back(tensor.to(type_of(tensor), /*non_blocking=*/false, /*copy=*/!recorded));
  }
  const CallTensors narrow{.tensors = sent, .is_group = call.is_group};
  TensorResults results = recorded
                              ? run_collective(context, narrow, options)
                              : start_collective(context, narrow, options, Place::in_place)->wait();
  for (std::size_t i = 0; i < results.size(); ++i) {
    results[i].tensor = results[i].tensor.to(call.tensors[i].scalar_type());
  }
  return results;
}

AlltoallOptions with_splits(AlltoallOptions options, const Tensor& splits) {
  check_dense(options.name, splits);
  if (splits.dim() != 1 || splits.numel() == 0 ||
      !torch::isIntegralType(splits.scalar_type(), /*includeBool=*/false)) {
    refuse_tensor(options.name, std::string("the splits are a tensor of type ") +
                                    torch::toString(splits.scalar_type()) + " with " +
                                    std::to_string(splits.dim()) +
                                    " dimensions; expected a one-dimensional one of integers, one "
                                    "for each rank of the process set");
  }
  const Tensor host = splits.detach().to(torch::kCPU, torch::kLong).contiguous();
  const auto* first = host.data_ptr<std::int64_t>();
  options.splits.assign(first, first + host.numel());
  return options;
}

}  // namespace

torch::Device local_device(const Context& context) {
  return to_torch(context.device());
}

Tensor allreduce(const Context& context, const Tensor& tensor, const AllreduceOptions& options) {
  return run<Tensor>(context, single(tensor), options);
}
Tensor allreduce(const Context& context, const Tensor& tensor, const AllreduceOptions& options,
                 Compression compression) {
  return results_as<Tensor>(run_compressed(context, single(tensor), options, compression));
}
Tensor& allreduce_(const Context& context, Tensor& tensor, const AllreduceOptions& options) {
  start_collective(context, single(tensor), options, Place::in_place)->wait();
  return tensor;
}
Tensor broadcast(const Context& context, const Tensor& tensor, const BroadcastOptions& options) {
  return run<Tensor>(context, single(tensor), options);
}
Tensor& broadcast_(const Context& context, Tensor& tensor, const BroadcastOptions& options) {
  start_collective(context, single(tensor), options, Place::in_place)->wait();
  return tensor;
}
Tensor allgather(const Context& context, const Tensor& tensor, const AllgatherOptions& options) {
  return run<Tensor>(context, single(tensor), options);
}
AlltoallResult alltoall(const Context& context, const Tensor& tensor,
                        const AlltoallOptions& options) {
  return run<AlltoallResult>(context, single(tensor), options);
}
AlltoallResult alltoall(const Context& context, const Tensor& tensor, const Tensor& splits,
                        const AlltoallOptions& options) {
  return alltoall(context, tensor, with_splits(options, splits));
}
Tensor reduce_scatter(const Context& context, const Tensor& tensor,
                      const ReduceScatterOptions& options) {
  return run<Tensor>(context, single(tensor), options);
}

TensorHandle allreduce_async(const Context& context, const Tensor& tensor,
                             const AllreduceOptions& options) {
  return start<Tensor>(context, single(tensor), options);
}
TensorHandle allreduce_async_(const Context& context, Tensor tensor,
                              const AllreduceOptions& options) {
  return start<Tensor>(context, single(tensor), options, Place::in_place);
}
TensorHandle broadcast_async(const Context& context, const Tensor& tensor,
                             const BroadcastOptions& options) {
  return start<Tensor>(context, single(tensor), options);
}
TensorHandle broadcast_async_(const Context& context, Tensor tensor,
                              const BroadcastOptions& options) {
  return start<Tensor>(context, single(tensor), options, Place::in_place);
}
TensorHandle allgather_async(const Context& context, const Tensor& tensor,
                             const AllgatherOptions& options) {
  return start<Tensor>(context, single(tensor), options);
}
AlltoallHandle alltoall_async(const Context& context, const Tensor& tensor,
                              const AlltoallOptions& options) {
  return start<AlltoallResult>(context, single(tensor), options);
}
AlltoallHandle alltoall_async(const Context& context, const Tensor& tensor, const Tensor& splits,
                              const AlltoallOptions& options) {
  return alltoall_async(context, tensor, with_splits(options, splits));
}
TensorHandle reduce_scatter_async(const Context& context, const Tensor& tensor,
                                  const ReduceScatterOptions& options) {
  return start<Tensor>(context, single(tensor), options);
}

Tensors grouped_allreduce(const Context& context, const Tensors& tensors,
                          const AllreduceOptions& options) {
  return run<Tensors>(context, group(tensors), options);
}
Tensors grouped_allreduce(const Context& context, const Tensors& tensors,
                          const AllreduceOptions& options, Compression compression) {
  return results_as<Tensors>(run_compressed(context, group(tensors), options, compression));
}
void grouped_allreduce_(const Context& context, const Tensors& tensors,
                        const AllreduceOptions& options) {
  start_collective(context, group(tensors), options, Place::in_place)->wait();
}
Tensors grouped_broadcast(const Context& context, const Tensors& tensors,
                          const BroadcastOptions& options) {
  return run<Tensors>(context, group(tensors), options);
}
void grouped_broadcast_(const Context& context, const Tensors& tensors,
                        const BroadcastOptions& options) {
  start_collective(context, group(tensors), options, Place::in_place)->wait();
}
Tensors grouped_allgather(const Context& context, const Tensors& tensors,
                          const AllgatherOptions& options) {
  return run<Tensors>(context, group(tensors), options);
}
std::vector<AlltoallResult> grouped_alltoall(const Context& context, const Tensors& tensors,
                                             const AlltoallOptions& options) {
  return run<std::vector<AlltoallResult>>(context, group(tensors), options);
}
Tensors grouped_reduce_scatter(const Context& context, const Tensors& tensors,
                               const ReduceScatterOptions& options) {
  return run<Tensors>(context, group(tensors), options);
}

TensorGroupHandle grouped_allreduce_async(const Context& context, const Tensors& tensors,
                                          const AllreduceOptions& options) {
  return start<Tensors>(context, group(tensors), options);
}
TensorGroupHandle grouped_allreduce_async_(const Context& context, const Tensors& tensors,
                                           const AllreduceOptions& options) {
  return start<Tensors>(context, group(tensors), options, Place::in_place);
}
TensorGroupHandle grouped_broadcast_async(const Context& context, const Tensors& tensors,
                                          const BroadcastOptions& options) {
  return start<Tensors>(context, group(tensors), options);
}
TensorGroupHandle grouped_broadcast_async_(const Context& context, const Tensors& tensors,
                                           const BroadcastOptions& options) {
  return start<Tensors>(context, group(tensors), options, Place::in_place);
}
TensorGroupHandle grouped_allgather_async(const Context& context, const Tensors& tensors,
                                          const AllgatherOptions& options) {
  return start<Tensors>(context, group(tensors), options);
}
AlltoallGroupHandle grouped_alltoall_async(const Context& context, const Tensors& tensors,
                                           const AlltoallOptions& options) {
  return start<std::vector<AlltoallResult>>(context, group(tensors), options);
}
TensorGroupHandle grouped_reduce_scatter_async(const Context& context, const Tensors& tensors,
                                               const ReduceScatterOptions& options) {
  return start<Tensors>(context, group(tensors), options);
}

TensorHandle sparse_allreduce_async(const Context& context, const Tensor& tensor,
                                    const AllreduceOptions& options) {
  check_sparse(tensor, options);
  const torch::NoGradGuard no_grad;
  const Tensor coalesced = tensor.detach().coalesce();
  Tensor values = coalesced.values();
  if (options.prescale != 1.0) values = values * options.prescale;
  const Tensors sent{sizes_and_indices(coalesced), values};
  auto gather =
      start_collective(context, {.tensors = sent, .is_group = true},
                       AllgatherOptions{.name = options.name, .process_set = options.process_set});
  return TensorAccess::handle<Tensor>(std::make_unique<PendingSparse>(
      std::move(gather), options, ranks_of(context, options.process_set), coalesced));
}

Tensor sparse_allreduce(const Context& context, const Tensor& tensor,
                        const AllreduceOptions& options) {
  return sparse_allreduce_async(context, tensor, options).wait();
}

}  // namespace hora
