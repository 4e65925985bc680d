/// Checks that all ranks step the same parameters with the same options.
#pragma once

#include <hora/hora.h>
#include <torch/optim/optimizer.h>

#include <cstdint>
#include <string>
#include <vector>

#include "frameworks/torch/optimizer/gradient_bucket.h"
#include "frameworks/torch/peers.h"

namespace hora::internal {

/// One exchange of four numbers, whatever is compared; more only where something differs. Ranks
/// that have joined are left out. Thread rule: one thread at a time.
class RankComparison {
 public:
  static constexpr std::int64_t rounds_between = 16;

  /// `name`: the prefix of the collectives' names. All references must outlive it.
  RankComparison(const Peers& peers, std::string name, const std::vector<Parameter>& parameters,
                 const torch::optim::Optimizer& optimizer);

  /// With round `round` of averaging, of step `step`, both from 0 on and the same on every rank: in
  /// the first round parameters, options and learning rates are compared, in every 16th learning
  /// rates. A second call in one round does nothing. Collective.
  void begin(std::int64_t round, std::int64_t step);
  /// After begin(): whether all ranks have begun, and nothing differs. Does not wait.
  bool agreed();
  /// end() would not block, but where anything differs.
  bool ready() const { return handle_.ready(); }
  /// Waits. Where anything differs every rank throws the same Error(mismatch), which names the
  /// first that does, the ranks and what to do.
  void end();

 private:
  /// One thing that is compared: a checksum, or the bits of a learning rate.
  struct ComparedValue {
    enum class Kind { parameter, options, learning_rate };
    Kind kind;
    std::size_t index;  ///< of the parameter, or of its group
    std::int64_t bits;
  };

  void add_parameters();
  void add_options();
  void add_learning_rates();
  /// After the exchange.
  bool is_the_same() const;
  [[noreturn]] void refuse() const;
  /// The indices of values that differ between ranks.
  std::vector<std::size_t> differing() const;
  [[noreturn]] void refuse_parameter(const ComparedValue& value, std::size_t count) const;
  [[noreturn]] void refuse_group(const ComparedValue& value) const;
  /// Ranks grouped by their value, the first rank's first.
  struct Holders {
    std::int64_t bits;
    std::vector<int> ranks;
  };
  std::vector<Holders> holders(const ComparedValue& value) const;

  const Peers peers_;
  const std::string name_;
  const std::vector<Parameter>& parameters_;
  const torch::optim::Optimizer& optimizer_;
  std::int64_t round_ = -1;  ///< that has been begun and not ended
  std::int64_t step_ = 0;
  std::vector<ComparedValue> values_;
  std::vector<std::int64_t> extremes_;
  Handle handle_;  // after extremes_: destroyed first
};

}  // namespace hora::internal
