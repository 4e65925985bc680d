/// The networks whose steps are timed.
#pragma once

#include <torch/nn/module.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

namespace bench {

/// Its forward pass reads one batch of noise that stays the same.
struct Network {
  std::shared_ptr<torch::nn::Module> module;
  std::function<torch::Tensor()> loss;  ///< forward; refers to `module`
};

/// Names that make_network() knows, and what they are.
struct NetworkKind {
  const char* name;
  const char* what;
  std::int64_t batch;  ///< samples a rank, where none are asked for
  std::function<Network(std::int64_t batch)> make;
};
const std::vector<NetworkKind>& network_kinds();

/// Throws std::invalid_argument for a name that it does not know.
const NetworkKind& network_kind(const std::string& name);

/// Weights and batch drawn from `seed`: the same seed gives the same. `batch` 0: the kind's own.
Network make_network(const std::string& name, std::int64_t batch, std::uint64_t seed);

}  // namespace bench
