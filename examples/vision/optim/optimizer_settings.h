/// The optimizers that trainers offer by name: values, without LibTorch. make_optimizer()
/// (optimizers.h) makes them.
#pragma once

#include <span>
#include <string>
#include <string_view>

namespace vision {

struct OptimizerSettings {
  std::string name = "sgd";  ///< of the table
  double learning_rate = 0.1;
  double momentum = 0.9;       ///< of sgd and lars; beta1 of adam, adamw and lamb
  double weight_decay = 1e-4;  ///< L2 in sgd, lars and adam; decoupled in adamw and lamb
  bool nesterov = false;       ///< of sgd
  /// False: BatchNorm's parameters and biases are not decayed, nor are their rates adapted by lars
  /// and lamb. They are the optimizer's second group then.
  bool decay_all = false;
};

struct OptimizerKind {
  std::string_view name;
  std::string_view description;
  /// Treats each element by itself, as DistributedOptimizer's shard_state needs.
  bool elementwise;
};

/// In the order in which --help lists them.
std::span<const OptimizerKind> optimizer_kinds();
/// Throws std::invalid_argument, with all names, where there is none of that name.
const OptimizerKind& optimizer_kind(std::string_view name);

}  // namespace vision
