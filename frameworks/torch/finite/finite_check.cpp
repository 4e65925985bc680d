#include <hora/collectives.h>
#include <hora/error.h>
#include <hora/torch/finite_check.h>
#include <torch/torch.h>

#include <cmath>
#include <limits>
#include <map>

#include "core/base/sync.h"
#include "frameworks/torch/peers.h"

namespace hora {
using namespace internal;
namespace {

enum class Finite : std::uint8_t { yes, infinite, nan };

/// `tensor` counts the loss as 0 and parameters from 1 on.
struct Finding {
  std::size_t tensor = 0;
  int rank = 0;
  bool is_nan = false;
};

/// min's identity, which joined ranks contribute.
constexpr std::int64_t kNothingFound = INT64_MAX;

/// A finding in an earlier tensor has a lower number; in one tensor, that of a lower rank.
std::int64_t number_of(const std::optional<Finding>& finding, int ranks) {
  if (!finding) return kNothingFound;
  const auto tensor = static_cast<std::int64_t>(finding->tensor);
  return (tensor * ranks + finding->rank) * 2 + (finding->is_nan ? 1 : 0);
}

std::optional<Finding> finding_of(std::int64_t number, int ranks) {
  if (number == kNothingFound) return std::nullopt;
  return Finding{static_cast<std::size_t>(number / 2 / ranks), static_cast<int>(number / 2 % ranks),
                 number % 2 == 1};
}

/// The floating-point or complex values of a tensor, real and dense; of a sparse one those stored.
at::Tensor real_values(const at::Tensor& tensor) {
  at::Tensor values = tensor;
  if (values.layout() == at::kSparse) {
    values = values._values();
  } else if (values.layout() != at::kStrided) {
    values = values.to_dense();
  }
  return values.is_complex() ? at::view_as_real(values.resolve_conj()) : values;
}

/// Looks at real values in host memory: one pass, and others where their sum is not finite.
Finite look_at(const at::Tensor& values) {
  if (std::isfinite(values.sum().item<double>())) return Finite::yes;
  if (values.isnan().any().item<bool>()) return Finite::nan;
  return values.isinf().any().item<bool>() ? Finite::infinite : Finite::yes;
}

/// Reduces real values in the order of the current stream, without waiting, to one element of which
/// look_at() tells the same.
at::Tensor largest_magnitude(const at::Tensor& values) {
  if (values.numel() == 0) return at::zeros({}, values.options());
  return at::linalg_vector_norm(values, std::numeric_limits<double>::infinity());
}

}  // namespace

std::string NonFinite::text() const {
  return c10::str(is_nan ? "NaN" : "Inf", " in ",
                  in_loss ? "the loss" : "the gradient of '" + tensor + "'", " of rank ", rank);
}

/// Hooks write to what mutex_ guards from the threads on which LibTorch computes gradients.
struct FiniteCheck::State {
  State(const Context& context,
        const torch::OrderedDict<std::string, torch::Tensor>& named_parameters,
        const FiniteCheckOptions& given)
      : options(given), peers(peers_of(context, given.process_set)) {
    const bool raises = options.policy == NonFinitePolicy::raise;
    std::vector<std::string> lines{
        looks() ? raises ? "policy raise" : "policy skip" : "policy ignore",
        options.gradients ? "gradients" : "the loss alone"};
    for (const auto& item : named_parameters) {
      lines.push_back("'" + item.key() + "'");
      parameters.push_back({item.key(), item.value(), std::nullopt});
    }
    check_agreement(peers,
                    {"FiniteCheck's options or parameters",
                     "Every rank must give the same ones, in the same order"},
                    options.name, lines);
    hook_trainable();
  }

  ~State() {
    for (const HookedParameter& parameter : parameters) {
      if (!parameter.hook) continue;
      try {
        parameter.tensor.remove_hook(*parameter.hook);
      } catch (...) {  // only where the list of hooks was cleared, this one included
      }
    }
  }
  State(const State&) = delete;
  State& operator=(const State&) = delete;

  bool looks() const { return options.policy != NonFinitePolicy::ignore; }

  /// LibTorch takes no hook on a frozen parameter.
  void hook_trainable() {
    if (!looks() || !options.gradients) return;
    for (std::size_t index = 0; index < parameters.size(); ++index) {
      HookedParameter& parameter = parameters[index];
      if (parameter.hook || !parameter.tensor.requires_grad()) continue;
      parameter.hook = parameter.tensor.register_hook(
          [this, index](const at::Tensor& gradient) { return pass_on(index, gradient); });
    }
  }

  /// Looks at a gradient; what takes its place, undefined where it stays. A step that will be
  /// discarded gives zeros to averages, so that hooks' error memories stay finite.
  at::Tensor pass_on(std::size_t parameter, const at::Tensor& gradient) {
    if (!gradient.defined() || look(parameter + 1, gradient) == Finite::yes) return {};
    return options.policy == NonFinitePolicy::skip ? at::zeros_like(gradient) : at::Tensor();
  }

  /// Notes what `tensor`, number `index`, holds, and says so where that is known by now.
  Finite look(std::size_t index, const at::Tensor& tensor) {
    const at::NoGradGuard no_grad;
    const at::Tensor values = real_values(tensor);
    if (values.device().is_cpu()) {
      const Finite finite = look_at(values);
      note(index, finite);
      return finite;
    }
    const at::Tensor magnitude = largest_magnitude(values).reshape({1});
    const LockGuard lock(mutex);
    Magnitudes& magnitudes = on_devices[values.device().index()];
    magnitudes.tensors.push_back(index);
    magnitudes.values.push_back(magnitude);
    return Finite::yes;
  }

  void note(std::size_t index, Finite finite) {
    if (finite == Finite::yes) return;
    const LockGuard lock(mutex);
    if (!found || index < found->tensor) {
      found = Finding{index, peers.context.rank(), finite == Finite::nan};
    }
  }

  /// Takes this rank's finding since it was last asked. Waits for devices.
  std::optional<Finding> take() {
    std::map<int, Magnitudes> waiting;
    {
      const LockGuard lock(mutex);
      waiting.swap(on_devices);
    }
    for (const auto& [device, magnitudes] : waiting) {
      const at::Tensor values = at::cat(magnitudes.values).to(at::kDouble).cpu();
      for (std::size_t i = 0; i < magnitudes.tensors.size(); ++i) {
        note(magnitudes.tensors[i], look_at(values[static_cast<std::int64_t>(i)]));
      }
    }
    const LockGuard lock(mutex);
    return std::exchange(found, std::nullopt);
  }

  /// Returns the finding of any rank.
  std::optional<Finding> agree(const std::optional<Finding>& own) const {
    std::int64_t number = number_of(own, peers.context.size());
    if (peers.size > 1) {
      allreduce(peers.context, view(&number, 1),
                {.name = options.name, .op = ReduceOp::min, .process_set = peers.set});
    }
    return finding_of(number, peers.context.size());
  }

  struct HookedParameter {
    std::string name;
    at::Tensor tensor;
    std::optional<unsigned> hook;
  };
  struct Magnitudes {
    std::vector<std::size_t> tensors;
    std::vector<at::Tensor> values;  ///< of one element each
  };

  const FiniteCheckOptions options;
  const Peers peers;
  std::vector<HookedParameter> parameters;
  Mutex mutex;
  std::optional<Finding> found HORA_GUARDED_BY(mutex);  ///< the one in the first tensor
  std::map<int, Magnitudes> on_devices HORA_GUARDED_BY(mutex);
};

FiniteCheck::FiniteCheck(const Context& context,
                         const torch::OrderedDict<std::string, torch::Tensor>& named_parameters,
                         const FiniteCheckOptions& options)
    : state_(std::make_unique<State>(context, named_parameters, options)) {}

FiniteCheck::~FiniteCheck() = default;
FiniteCheck::FiniteCheck(FiniteCheck&&) noexcept = default;
FiniteCheck& FiniteCheck::operator=(FiniteCheck&&) noexcept = default;

std::optional<NonFinite> FiniteCheck::check(const torch::Tensor& loss) {
  State& state = *state_;
  if (!state.looks()) return std::nullopt;
  if (loss.defined() && !loss.is_floating_point()) {
    throw Error(ErrorCode::invalid_argument,
                std::string("FiniteCheck: the loss has type ") +
                    torch::toString(loss.scalar_type()) + "; expected a floating-point type",
                state.peers.context.rank());
  }
  if (loss.defined()) state.look(0, loss.detach());
  const auto finding = state.agree(state.take());
  state.hook_trainable();
  if (!finding) return std::nullopt;

  const bool in_loss = finding->tensor == 0;
  NonFinite found{finding->rank, in_loss ? "loss" : state.parameters[finding->tensor - 1].name,
                  in_loss, finding->is_nan};
  if (state.options.policy == NonFinitePolicy::skip) return found;
  throw Error(
      ErrorCode::invalid_argument,
      "FiniteCheck: " + found.text() +
          ", before any rank has stepped. Lower the learning rate, clip gradients, look for "
          "bad samples, or leave out such steps with NonFinitePolicy::skip",
      found.rank, found.tensor);
}

}  // namespace hora
