/// NaN and Inf in a loss or a gradient: found before they are stepped with, and decided on by all
/// ranks alike.
///
///     hora::FiniteCheck finite(world, model->named_parameters(),
///                              {.policy = hora::NonFinitePolicy::skip});
///     for (auto& batch : *loader) {
///       optimizer.zero_grad();
///       const torch::Tensor loss = loss_of(model, batch);
///       loss.backward();
///       if (const auto found = finite.check(loss)) {   // the same on every rank
///         if (world.rank() == 0) std::cerr << "step left out: " << found->text() << '\n';
///         optimizer.zero_grad();                       // on every rank: discards the gradients
///         continue;
///       }
///       optimizer.step();
///     }
#pragma once

#include <hora/context.h>
#include <hora/export.h>
#include <hora/types.h>
#include <torch/ordered_dict.h>
#include <torch/types.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

namespace HORA_EXPORT hora {

enum class NonFinitePolicy : std::uint8_t {
  raise,   ///< check() throws the same Error(invalid_argument) on every rank
  skip,    ///< check() gives what was found; the program discards the step
  ignore,  ///< nothing is looked at, and nothing sent
};

struct FiniteCheckOptions {
  NonFinitePolicy policy = NonFinitePolicy::raise;
  /// false: the loss alone counts. Beside a GradScaler, whose high scales give infinite gradients
  /// from time to time: it leaves out those steps, on every rank, and lowers the scale. The loss to
  /// check is the one before scale().
  bool gradients = true;
  ProcessSet process_set = kWorld;
  std::string name = "hora.finite_check";  ///< of the collectives
};

/// The first tensor that holds a value that is not finite: the loss before all parameters, these in
/// order of registration; and of the ranks on which that one does, the lowest.
struct NonFinite {
  int rank = 0;        ///< in the world
  std::string tensor;  ///< "loss", or the parameter's name
  bool in_loss = false;
  bool is_nan = false;  ///< else infinities only
  /// "NaN in the loss of rank 0", "Inf in the gradient of 'fc.weight' of rank 1".
  std::string text() const;
};

/// Looks at each gradient of this rank when a backward pass has computed it: before it is added to
/// `.grad`, averaged or compressed, as no other rank has it. check() then sends 8 bytes. So it
/// works beside a DistributedOptimizer with any options (constructed before or after it), and
/// without one.
///
/// On a CPU a gradient is added up once, while it is in the cache (and looked at again where the
/// sum is not finite, for a sum of finite values can overflow); on a GPU a kernel a gradient
/// computes its largest magnitude, and check() waits for the device, as loss.item() does.
///
/// A found step is discarded by DistributedOptimizer's zero_grad(), with several optimizers each
/// one's, on every rank; nothing that step() would change has changed then. What forward() and
/// backward() themselves change stays, such as running averages of BatchNorm, and the error memory
/// of a DistributedOptimizerOptions::hook: so that it stays finite, `skip` puts zeros in the place
/// of a gradient that is not, on a CPU. On a GPU, where that is known only later, the memory is
/// lost with the first finding: do not combine these there.
///
/// Not found are sums of several finite gradients that overflow: of several passes, or of all
/// ranks, and what hooks on parameters do that a program has registered later.
///
/// Collective: construct it on every rank of the set, with the same options and names of
/// parameters, else every rank throws the same Error(mismatch). The context must outlive it and
/// stay where it is. Parameters may be frozen, and become trainable later: they are looked at from
/// the check() after that on. Ranks that have joined (DistributedOptimizer::join()) count as
/// finite. Thread rule: one thread at a time, not during backward().
class FiniteCheck {
 public:
  /// Throws Error(invalid_argument) where this rank is not in the set.
  FiniteCheck(const Context& context,
              const torch::OrderedDict<std::string, torch::Tensor>& named_parameters,
              const FiniteCheckOptions& options = {});
  /// Takes its hooks away.
  ~FiniteCheck();
  FiniteCheck(FiniteCheck&&) noexcept;
  FiniteCheck& operator=(FiniteCheck&&) noexcept;

  /// After the last backward() of a step and before step(): what any rank has found in its loss,
  /// and in the gradients of all backward passes since the last check(); nothing where all was
  /// finite. `loss`: of any floating-point type and shape; of several passes their sum will do;
  /// undefined: gradients alone count. Collective. Throws what `policy` says, with the finding's
  /// rank and tensor (the optimizer's zero_grad() discards such a step, too);
  /// Error(invalid_argument) for a loss of another type; what allreduce() throws.
  std::optional<NonFinite> check(const torch::Tensor& loss);

 private:
  struct HORA_HIDDEN State;
  std::unique_ptr<State> state_;
};

}  // namespace hora
