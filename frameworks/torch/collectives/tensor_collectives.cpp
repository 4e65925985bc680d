// Collectives on tensors: those under way (PendingTensors), those that autograd records, and the
// public functions over them.
#include <c10/util/SmallVector.h>
#include <hora/torch/collectives.h>
#include <torch/torch.h>

#include <algorithm>
#include <exception>
#include <functional>
#include <numeric>
#include <span>
#include <variant>

#include "core/base/text.h"
#include "frameworks/torch/tensor_view.h"
#include "frameworks/torch/wire_type.h"

namespace hora::internal {

/// A call's results, by tensor; rows only of operations whose core calls give a Result.
using TensorResults = c10::SmallVector<AlltoallResult, 1>;

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

}  // namespace

/// Collectives under way. Thread rule: as CollectiveHandle. The destructor waits, as Handle's.
class PendingTensors {
 public:
  explicit PendingTensors(std::size_t size) { members_.reserve(size); }
  PendingTensors(const PendingTensors&) = delete;
  PendingTensors& operator=(const PendingTensors&) = delete;
  ~PendingTensors() {
    // A handle that an exception drops does not wait, and the collective goes on.
    if (std::uncaught_exceptions() == 0) return;
    for (const Member& each : members_) {
      if (std::visit([](const auto& handle) { return handle.valid(); }, each.handle)) {
        never_free(each.contiguous.storage());
      }
    }
  }

  /// `contiguous`: `target`, or what has its values.
  template <class Options>
  void add(const Context& context, torch::Tensor contiguous, torch::Tensor target,
           const Options& options) {
    auto handle = submit(context, view_of(options.name, contiguous), options);
    members_.push_back({std::move(contiguous), std::move(target), std::move(handle)});
  }

  bool ready() const {
    return std::all_of(members_.begin(), members_.end(), [](const Member& each) {
      return std::visit([](const auto& handle) { return handle.ready(); }, each.handle);
    });
  }

  /// As Handle::wait_for(): true where all are done.
  bool wait_for(std::chrono::nanoseconds timeout) const {
    const auto begin = std::chrono::steady_clock::now();
    return std::all_of(members_.begin(), members_.end(), [&](const Member& each) {
      const auto left = timeout - (std::chrono::steady_clock::now() - begin);
      return std::visit([&](const auto& handle) { return handle.wait_for(left); }, each.handle);
    });
  }

  /// Once. Waits for all of them, then throws the first one's error.
  TensorResults wait() {
    TensorResults results;
    results.reserve(members_.size());
    std::exception_ptr first_error;
    for (Member& each : members_) {
      Member own = std::move(each);  // freed as soon as it is done
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
    return finish ? finish(std::move(results)) : std::move(results);
  }

  std::function<TensorResults(TensorResults)> finish;  ///< makes the results of those, if set

 private:
  /// The values of a Handle arrive in `contiguous`, from where they are copied where that is not
  /// `target`; those of a ResultHandle in memory of hora's, from where they come to the device of
  /// `target`.
  struct Member {
    torch::Tensor contiguous;
    torch::Tensor target;
    std::variant<Handle, ResultHandle> handle;  // last: it waits while its memory is still held
  };

  static AlltoallResult collect(Member& member) {
    void* const stream = current_stream(member.contiguous.device());
    std::optional<Result> result;
    if (auto* const handle = std::get_if<Handle>(&member.handle)) {
      handle->wait(stream);
    } else {
      result = std::get<ResultHandle>(member.handle).wait(stream);
    }
    keep_for_stream(member.contiguous, stream);
    if (result) return {on_device(to_tensor(*result), member.target.device()), result->rows()};
    if (member.contiguous.is_same(member.target)) {
      note_written(member.target);
    } else {
      const torch::NoGradGuard no_grad;
      member.target.copy_(member.contiguous);
    }
    return {std::move(member.target), {}};
  }

  c10::SmallVector<Member, 1> members_;
};

/// Access of hora's own sources to the public handles, whose friend it is.
struct TensorAccess {
  template <class T>
  static CollectiveHandle<T> handle(std::shared_ptr<PendingTensors> pending) {
    CollectiveHandle<T> handle;
    handle.pending_ = std::move(pending);
    return handle;
  }
};

namespace {

std::string member_name(const std::string& name, std::size_t index) {
  return name.empty() ? name : name + "." + std::to_string(index);
}

void check(const CallTensors& call, const std::string& name) {
  const at::TensorList tensors = call.tensors;
  if (!call.is_group) return check_dense(name, tensors[0]);
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    check_dense(member_name(name, i), tensors[i]);
    if (tensors[i].device() == tensors[0].device()) continue;
    refuse_tensor(member_name(name, i), "is on ", tensors[i].device(),
                  ", and the group's first one on ", tensors[0].device(),
                  "; expected one device for all");
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
std::shared_ptr<PendingTensors> start_collective(const Context& context, const CallTensors& call,
                                                 const Options& options,
                                                 Place place = Place::out_of_place) {
  check(call, options.name);
  start_tensor_arena(context);
  share_device_memory(context);
  const torch::NoGradGuard no_grad;
  auto pending = std::make_shared<PendingTensors>(call.tensors.size());
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
    refuse_tensor(options.name, "a reduction by ", name_of(options.op),
                  " of sparse tensors is not defined");
  }
  const bool scaled =
      options.op == ReduceOp::average || options.prescale != 1.0 || options.postscale != 1.0;
  if (scaled && !tensor.is_floating_point()) {
    refuse_tensor(options.name, "an average or a scale of ", tensor.scalar_type(),
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

/// The indices that all ranks gave. Throws Error(mismatch) where their sizes differ.
torch::Tensor indices_in(const AlltoallResult& gathered, const std::vector<int>& ranks,
                         const std::string& name) {
  std::vector<torch::Tensor> parts;
  std::int64_t first = 0;
  for (std::size_t i = 0; i < ranks.size(); ++i) {
    const std::int64_t rows = gathered.received_splits[i];
    const torch::Tensor sizes = gathered.tensor[first];
    if (!torch::equal(gathered.tensor[0], sizes)) {
      throw Error(
          ErrorCode::mismatch,
          c10::str(tensor_text(name), ": ranks disagree about its sizes: rank ", ranks.front(),
                   " has ", sizes_text(gathered.tensor[0]), ", rank ", ranks[i], " has ",
                   sizes_text(sizes), " in the dimensions that have indices"),
          ranks[i], name);
    }
    parts.push_back(gathered.tensor.narrow(0, first + 1, rows - 1));
    first += rows;
  }
  return torch::cat(parts).t();
}

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
    refuse_tensor(options.name, "the splits are ", splits.scalar_type(), " with ", splits.dim(),
                  " dimensions; expected a one-dimensional ",
                  "tensor of integers, one for each rank of the set");
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

// Each operation blocking and not, on a tensor and on a group.
#define HORA_DEFINE(operation, Options, Single, Group)                                     \
  Single operation(const Context& context, const Tensor& tensor, const Options& options) { \
    return run<Single>(context, single(tensor), options);                                  \
  }                                                                                        \
  Group grouped_##operation(const Context& context, const Tensors& tensors,                \
                            const Options& options) {                                      \
    return run<Group>(context, group(tensors), options);                                   \
  }                                                                                        \
  CollectiveHandle<Single> operation##_async(const Context& context, const Tensor& tensor, \
                                             const Options& options) {                     \
    return start<Single>(context, single(tensor), options);                                \
  }                                                                                        \
  CollectiveHandle<Group> grouped_##operation##_async(                                     \
      const Context& context, const Tensors& tensors, const Options& options) {            \
    return start<Group>(context, group(tensors), options);                                 \
  }
HORA_DEFINE(allreduce, AllreduceOptions, Tensor, Tensors)
HORA_DEFINE(broadcast, BroadcastOptions, Tensor, Tensors)
HORA_DEFINE(allgather, AllgatherOptions, Tensor, Tensors)
HORA_DEFINE(alltoall, AlltoallOptions, AlltoallResult, std::vector<AlltoallResult>)
HORA_DEFINE(reduce_scatter, ReduceScatterOptions, Tensor, Tensors)
#undef HORA_DEFINE

// The same in place.
#define HORA_DEFINE_IN_PLACE(operation, Options)                                                   \
  Tensor& operation##_(const Context& context, Tensor& tensor, const Options& options) {           \
    start_collective(context, single(tensor), options, Place::in_place)->wait();                   \
    return tensor;                                                                                 \
  }                                                                                                \
  void grouped_##operation##_(const Context& context, const Tensors& tensors,                      \
                              const Options& options) {                                            \
    start_collective(context, group(tensors), options, Place::in_place)->wait();                   \
  }                                                                                                \
  TensorHandle operation##_async_(const Context& context, Tensor tensor, const Options& options) { \
    return start<Tensor>(context, single(tensor), options, Place::in_place);                       \
  }                                                                                                \
  TensorGroupHandle grouped_##operation##_async_(const Context& context, const Tensors& tensors,   \
                                                 const Options& options) {                         \
    return start<Tensors>(context, group(tensors), options, Place::in_place);                      \
  }
HORA_DEFINE_IN_PLACE(allreduce, AllreduceOptions)
HORA_DEFINE_IN_PLACE(broadcast, BroadcastOptions)
#undef HORA_DEFINE_IN_PLACE

Tensor allreduce(const Context& context, const Tensor& tensor, const AllreduceOptions& options,
                 Compression compression) {
  return results_as<Tensor>(run_compressed(context, single(tensor), options, compression));
}
Tensors grouped_allreduce(const Context& context, const Tensors& tensors,
                          const AllreduceOptions& options, Compression compression) {
  return results_as<Tensors>(run_compressed(context, group(tensors), options, compression));
}
AlltoallResult alltoall(const Context& context, const Tensor& tensor, const Tensor& splits,
                        const AlltoallOptions& options) {
  return alltoall(context, tensor, with_splits(options, splits));
}
AlltoallHandle alltoall_async(const Context& context, const Tensor& tensor, const Tensor& splits,
                              const AlltoallOptions& options) {
  return alltoall_async(context, tensor, with_splits(options, splits));
}

TensorHandle sparse_allreduce_async(const Context& context, const Tensor& tensor,
                                    const AllreduceOptions& options) {
  check_sparse(tensor, options);
  const torch::NoGradGuard no_grad;
  const Tensor own = tensor.detach().coalesce();
  const Tensor values = options.prescale == 1.0 ? own.values() : own.values() * options.prescale;
  const Tensors sent{sizes_and_indices(own), values};
  auto pending =
      start_collective(context, {.tensors = sent, .is_group = true},
                       AllgatherOptions{.name = options.name, .process_set = options.process_set});
  const std::vector<int> ranks = ranks_of(context, options.process_set);
  pending->finish = [options, ranks, sizes = own.sizes().vec()](const TensorResults& gathered) {
    const torch::NoGradGuard no_gradients;
    const Tensor sum = torch::sparse_coo_tensor(indices_in(gathered[0], ranks, options.name),
                                                gathered[1].tensor, sizes)
                           .coalesce();
    const bool averages = options.op == ReduceOp::average;
    const double scale = options.postscale / (averages ? static_cast<double>(ranks.size()) : 1.0);
    if (scale != 1.0) sum.values().mul_(scale);
    return TensorResults{{sum, {}}};
  };
  return TensorAccess::handle<Tensor>(std::move(pending));
}

Tensor sparse_allreduce(const Context& context, const Tensor& tensor,
                        const AllreduceOptions& options) {
  return sparse_allreduce_async(context, tensor, options).wait();
}

}  // namespace hora
