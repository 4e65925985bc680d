/// Ways of training a network on several ranks, side by side.
#pragma once

#include <hora/context.h>
#include <torch/optim/sgd.h>

#include <cstddef>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "bench/harness/ranks.h"
#include "bench/training_step/network.h"

namespace bench {

/// SGD as all contenders step it.
inline constexpr double learning_rate = 0.01;
inline constexpr double momentum = 0.9;
torch::optim::SGDOptions sgd_options();

/// Averages a network's gradients and updates its weights. A step is begin(), forward and
/// backward of the network, step(). Every function is collective. Thread rule: one thread.
class Contender {
 public:
  virtual ~Contender() = default;
  /// Makes gradients undefined.
  virtual void begin() = 0;
  /// After it the weights are those of the next step.
  virtual void step() = 0;
  /// Its own counts since it was made or since the last call, of this rank.
  virtual std::map<std::string, double> take_counters() { return {}; }
};

/// A contender is made from it; outlives the contender.
struct Surroundings {
  const hora::Context& world;
  const Ranks& ranks;
  std::size_t bucket_bytes = 0;  ///< hora's; 0: its default
};

/// Sums of a few floats, rounded once each.
inline constexpr double float32_tolerance = 1e-5;

struct ContenderKind {
  const char* name;  ///< ../README.md says what each does
  /// Whether it is measured while LibTorch's tensors lie in hora's arena (HORA_TENSOR_ARENA). That
  /// holds for all of a process, so those with it are measured in a context of their own.
  bool in_arena = false;
  /// Allowed difference of an update by the gradient, as a share of its parameter's largest.
  double tolerance = float32_tolerance;
  /// Collective; empty where this build has none. `network` outlives the contender.
  std::function<std::unique_ptr<Contender>(const Surroundings& surroundings, Network& network)>
      make;
  bool averages = true;
  /// It does not outlive the context.
  bool of_context = false;
  const char* absent = "";  ///< why `make` is empty
};

/// The first is `plain`: no communication, to which the others are compared.
const std::vector<ContenderKind>& contender_kinds();

/// Throws std::invalid_argument for a name that there is not, or not in this build.
const ContenderKind& contender_kind(const std::string& name);
/// Names of those that this build has.
std::vector<std::string> present_contenders();

/// torch::nn::parallel::DistributedDataParallel's Reducer on ProcessGroupGloo of the same LibTorch
/// (c10d_gloo.cpp; empty in c10d_gloo_absent.cpp).
std::function<std::unique_ptr<Contender>(const Surroundings&, Network&)> c10d_gloo();

}  // namespace bench
