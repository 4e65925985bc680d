/// NaN and Inf in a loss or a gradient, found before a step, and decided on by all ranks alike.
///
///     hora::FiniteCheck finite(world, model->named_parameters(),
///                              {.policy = hora::NonFinitePolicy::skip});
///     for (auto& batch : *loader) {
///       const torch::Tensor loss = loss_of(model, batch);
///       loss.backward();
///       if (!finite.check(loss)) optimizer.step();   // the same on every rank
///       optimizer.zero_grad();                       // or discards the gradients
///     }
#pragma once

#include <hora/torch/collectives.h>

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
  /// False: the loss alone, before scale(), for a GradScaler, which itself leaves out steps whose
  /// gradients are infinite.
  bool gradients = true;
  ProcessSet process_set = kWorld;
  std::string name = "hora.finite_check";  ///< of the collectives
};

/// The first tensor with a value that is not finite: the loss, then parameters in order of
/// registration; of its ranks the lowest.
struct NonFinite {
  int rank = 0;        ///< in the world
  std::string tensor;  ///< "loss", or the parameter's name
  bool in_loss = false;
  bool is_nan = false;  ///< else infinities only
  /// "NaN in the loss of rank 0", "Inf in the gradient of 'fc.weight' of rank 1".
  std::string text() const;
};

/// Looks at each gradient of this rank when backward has computed it, before it is added up,
/// averaged or compressed; check() sends 8 bytes, and waits for a GPU. Works beside a
/// DistributedOptimizer, or without. Not found are sums of finite gradients that overflow.
///
/// Collective: the same options and names on every rank of the set, else all throw the same
/// Error(mismatch). The context must outlive it. Parameters that become trainable are looked at
/// after the next check(). Thread rule: one thread at a time, not during backward().
class FiniteCheck {
 public:
  FiniteCheck(const Context& context,
              const torch::OrderedDict<std::string, torch::Tensor>& named_parameters,
              const FiniteCheckOptions& options = {});
  ~FiniteCheck();
  FiniteCheck(FiniteCheck&&) noexcept;
  FiniteCheck& operator=(FiniteCheck&&) noexcept;

  /// Between a step's last backward() and step(): returns the finding of any rank since the last
  /// check(), if any. `loss`: floating-point, any shape; undefined: gradients alone. Collective.
  std::optional<NonFinite> check(const torch::Tensor& loss);

 private:
  struct HORA_HIDDEN State;
  std::unique_ptr<State> state_;
};

}  // namespace hora
