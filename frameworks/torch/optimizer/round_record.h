/// Record of a round of averaging: what each rank says beside its gradients, in one exchange, and
/// what follows from all ranks' words. Over the host: reading it from a GPU would wait for the GPU.
#pragma once

#include <hora/hora.h>
#include <torch/optim/optimizer.h>

#include <chrono>
#include <compare>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "frameworks/torch/optimizer/parameters.h"
#include "frameworks/torch/peers.h"

namespace hora::internal {

/// How often a rank has called step() and zero_grad().
struct StepCalls {
  std::int64_t steps = 0;
  std::int64_t zero_grads = 0;
  auto operator<=>(const StepCalls&) const = default;
};

/// Counts calls, which say in which step a rank is (step_lanes). Thread rule: one thread at a time.
class StepCounter {
 public:
  void note_step() { calls_.steps += 1; }
  void note_zero_grad() { calls_.zero_grads += 1; }
  void begin_round();
  /// The round's: the same on ranks that have called the same since the round before. More than one
  /// step() counts as one, more than three zero_grad() as three.
  std::size_t lane() const { return lane_; }
  const StepCalls& calls() const { return calls_; }          ///< since the begin
  const StepCalls& calls_before() const { return before_; }  ///< likewise, before the round
  /// Another begin, the same on all ranks.
  void restart() { *this = {}; }

 private:
  StepCalls calls_;
  StepCalls before_;
  std::size_t lane_ = 0;
};

/// How a rank uses averages.
enum class RoundEnd { undecided, step, discard };

/// Checksum of the values that ranks compare, and their number.
struct Compared {
  std::int64_t checksum = 0;
  std::int64_t values = 0;
};

/// A rank's facts in a round.
struct RoundFacts {
  std::size_t step_lane = 0;
  bool updates = false;  ///< it can step by the pass that averages (fused.h), and will
  RoundEnd end = RoundEnd::undecided;
  Compared compared = {};
  std::chrono::nanoseconds step_time{0};
  /// By gradient, whether it has one; empty: the buckets say so.
  std::vector<bool> present = {};
  /// All gradients as they have come; empty: ranks know an order.
  std::vector<std::size_t> arrivals = {};
};

/// Follows from all ranks' facts, the same on each. Ranks that have joined are left out.
struct RoundAnswer {
  bool one_step = true;
  bool all_update = false;
  bool any_undecided = false;
  bool ends_differ = false;  ///< some step, some discard
  bool same_values = true;
  bool as_many_values = true;
  std::chrono::nanoseconds step_time{0};   ///< the slowest rank's
  std::vector<bool> present = {};          ///< on any rank
  std::vector<std::size_t> arrivals = {};  ///< the first rank's
};

/// A rank's message; the elementwise maximum over ranks is what answer_of() takes.
std::vector<std::int64_t> message_of(const RoundFacts& facts, int rank_in_set, int size);
/// `facts`: any rank's, whose lists are as long as this one's.
RoundAnswer answer_of(std::span<const std::int64_t> message, const RoundFacts& facts);

/// One exchange a round, on every rank or on none. Thread rule: one thread at a time.
class RoundRecord {
 public:
  /// `name`: of the collective.
  RoundRecord(const Peers& peers, std::string name);

  /// Once a round. Collective, does not wait.
  void send(RoundFacts facts);
  bool sent() const { return sent_; }
  const RoundFacts& own() const { return facts_; }
  /// wait() would not block.
  bool ready() const { return handle_.ready(); }
  /// Waits for what was sent in this round; where nothing was, everything agrees.
  const RoundAnswer& wait();
  /// Once wait() has returned, until the next round.
  const RoundAnswer& answer() const { return answer_; }
  void begin_round();
  const std::string& name() const { return name_; }

 private:
  const Peers peers_;
  const std::string name_;
  bool sent_ = false;
  RoundFacts facts_;
  RoundAnswer answer_;
  std::vector<std::int64_t> message_;
  Handle handle_;  // after message_: destroyed first
};

/// Tells all ranks in which steps they are, once. Thread rule: one thread at a time.
class StepsExchange {
 public:
  /// `name`: the optimizer's.
  StepsExchange(const Peers& peers, std::string name) : peers_(peers), name_(std::move(name)) {}

  /// Collective, does not wait.
  void send(const StepCalls& calls);
  /// After send(): waits. Gives the same Error(mismatch) on every rank: which are in which step,
  /// and what to do. `updated`: some parameters may hold this step's update already, on all ranks
  /// alike.
  Error error(bool updated);

 private:
  const Peers peers_;
  const std::string name_;
  /// By rank in the set: that it reports (one that has joined does not), its world rank, its calls.
  std::vector<std::int64_t> all_;
  Handle handle_;
};

/// Compares the parameters that ranks step, and their options: by a checksum in the round's record;
/// more travels only where something differs. Thread rule: one thread at a time.
class RankComparison {
 public:
  static constexpr std::int64_t rounds_between = 16;

  /// `name`: the prefix of the collectives' names. All references must outlive it.
  RankComparison(const Peers& peers, std::string name, const std::vector<Parameter>& parameters,
                 const torch::optim::Optimizer& optimizer);

  /// For the record of round `round`, of step `step`, both from 0 on and the same on every rank: in
  /// the first round parameters, options and learning rates are compared, in every 16th learning
  /// rates; in others nothing. Parameters are read by the round's first call.
  std::optional<Compared> begin(std::int64_t round, std::int64_t step);
  /// Where anything differs every rank throws the same Error(mismatch), which names the first that
  /// does, the ranks and what to do.
  void end(const RoundAnswer& answer);

 private:
  /// A checksum, or the bits of a learning rate.
  struct ComparedValue {
    enum class Kind { parameter, options, learning_rate };
    Kind kind;
    std::size_t index;  ///< of the parameter, or of its group
    std::int64_t bits;
  };

  void add_parameters();
  void add_groups(ComparedValue::Kind kind);
  [[noreturn]] void refuse() const;

  const Peers peers_;
  const std::string name_;
  const std::vector<Parameter>& parameters_;
  const torch::optim::Optimizer& optimizer_;
  std::int64_t round_ = -1;  ///< that has been begun and not ended
  std::int64_t step_ = 0;
  std::vector<ComparedValue> values_;
};

}  // namespace hora::internal
