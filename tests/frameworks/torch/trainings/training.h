/// Random trainings and their features, as values: equal for every rank that draws from one seed.
#pragma once

#include <hora/torch/compression.h>
#include <hora/types.h>

#include <bitset>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace hora::internal::test {

enum class Feature {
  sharding,
  compression,
  hook,
  grad_scaler,
  accumulation,
  clipping,
  groups,
  static_graph,
  join,
  process_set,
  two_optimizers,
  replaced,  ///< parameters get other memory, or other values, between steps
  frozen,
  tied,
  empty,
  scalar,
  strided,
};
inline constexpr std::size_t kFeatures = 17;
using Features = std::bitset<kFeatures>;
constexpr std::size_t index_of(Feature feature) {
  return static_cast<std::size_t>(feature);
}

const char* name_of(Feature feature);
/// "join, empty".
std::string names_of(const Features& features);

/// Two that hora refuses, and the text of its error.
struct Exclusion {
  Feature one;
  Feature other;
  std::string text;
};
const std::vector<Exclusion>& exclusions();
bool go_together(Feature one, Feature other);

enum class Wrapped { sgd, momentum, nesterov, adam, adamw, adagrad, rmsprop };
enum class Hook { none, power_sgd, top_k };
enum class Grouping { none, number, lists };
/// How a step's backward passes are added up.
enum class Accumulation { none, passes, no_sync };
/// Change of parameters in a step, and when: before backward() and step(), or after it.
enum class Replacement { none, memory, values, in_place, type };
enum class Moment { backward, step, end };

/// A part of the network, with parameters of its own or those of an earlier block.
struct Block {
  /// `wide`: its gradients of 64 KiB stay where autograd puts them.
  enum class Kind { linear, convolution, wide, gain, nothing };
  /// In memory: by rows, or with the dimensions in another order.
  enum class Layout { rows, turned };

  Kind kind = Kind::linear;
  Layout layout = Layout::rows;
  int tied_to = -1;   ///< an earlier block of the same kind
  bool named = true;  ///< a tied block registers the parameters under its own names, too
  int frozen_from =
      1000;  ///< steps in which its parameters require no gradient; 0: also when wrapped
  int frozen_until = 1000;
  int optimizer = 0;
  int options = 0;  ///< parameter group within the optimizer

  bool is_frozen(int step) const { return step >= frozen_from && step < frozen_until; }
};

/// One rank's part in one step.
struct Share {
  /// Blocks that each backward pass uses: bit i is block i. May be empty.
  std::vector<unsigned> passes;
  bool overflows = false;     ///< its gradients are not finite
  bool synchronizes = false;  ///< before step()
};

struct Training {
  std::uint64_t seed = 0;
  int ranks = 1;
  Features features;
  bool has(Feature feature) const { return features.test(index_of(feature)); }

  Wrapped wrapped = Wrapped::sgd;
  ReduceOp op = ReduceOp::average;
  double predivide = 1.0;
  std::size_t bucket_bytes = 0;
  Compression compression = Compression::none;
  Hook hook = Hook::none;
  Grouping grouping = Grouping::none;
  Accumulation accumulation = Accumulation::none;
  int passes = 1;
  int sharding = 0;  ///< as hora::Sharding
  bool overlaps_gather = false;
  double initial_scale = 1.0;
  int growth_interval = 1;
  double max_norm = 0.0;
  std::vector<Replacement> replacements;  ///< in each step
  Moment replaced_at = Moment::end;
  unsigned replaced = ~0U;     ///< bit i: parameter i
  double decay = 1.0;          ///< of learning rates with each step
  std::vector<bool> discards;  ///< before each step: a backward() that all give up

  std::vector<Block> blocks;
  int optimizers = 1;

  /// [step][rank]. With join the last of them come after it.
  std::vector<std::vector<Share>> shares;
  int steps_before_join = 0;
  /// Number of the steps before join() that each rank makes.
  std::vector<int> joins_after;
  int steps() const { return static_cast<int>(shares.size()); }
  bool takes_part(int rank, int step) const;

  /// Ascending world ranks that train together with this one: all, or those of its parity.
  std::vector<int> members(int rank) const;
  /// Its parameters; otherwise they are float64. Wide enough to be compressed.
  bool is_float32() const { return compression != Compression::none; }
  std::string describe() const;
};

/// `wanted`: features that it has in any case, also where they do not go together.
Training draw_training(std::uint64_t seed, int ranks, const std::vector<Feature>& wanted = {});

}  // namespace hora::internal::test
