/// Successive rounds of averaging: which gradients have arrived, what is left to do, and the record
/// of what each rank says beside its gradients: over the host, for reading from a GPU would wait.
#pragma once

#include <hora/torch/distributed_optimizer.h>

#include <chrono>
#include <compare>
#include <functional>
#include <span>

#include "core/base/sync.h"
#include "frameworks/torch/optimizer/bucket.h"
#include "frameworks/torch/optimizer/tuner.h"

namespace hora::internal {

/// How often a rank has called step() and zero_grad().
struct StepCalls {
  std::int64_t steps = 0;
  std::int64_t zero_grads = 0;
  auto operator<=>(const StepCalls&) const = default;
};

/// The lane (step_lanes) of a rank that has called this since its last round: the same on ranks
/// that have called the same. More than one step() counts as one, more than three zero_grad() as
/// three.
std::size_t lane_of(const StepCalls& since);

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
  bool updates = false;  ///< it can step by the pass that averages, and will
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
  RoundRecord(const Peers& peers, std::string name) : peers_(peers), name_(std::move(name)) {}

  void begin_round() {
    sent_ = false;
    answer_ = {};
  }
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

/// Compares the parameters that ranks step, and their options: by a checksum in the round's record;
/// more travels only where something differs. Thread rule: one thread at a time.
class RankComparison {
 public:
  static constexpr std::int64_t rounds_between = 16;

  /// `name`: the prefix of the collectives' names. References outlive it. Compares nothing unless
  /// `enabled`.
  RankComparison(const Peers& peers, std::string name, const std::vector<Parameter>& parameters,
                 const torch::optim::Optimizer& optimizer, bool enabled);

  /// For the record of round `round`, of step `step`, both from 0 on and the same on every rank:
  /// the first one compares parameters, options and learning rates, every 16th learning rates,
  /// others nothing. Parameters are read by the round's first call.
  std::optional<Compared> begin(std::int64_t round, std::int64_t step);
  /// Where anything differs, every rank throws the same Error(mismatch), which names it.
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
  const bool enabled_;
  std::int64_t round_ = -1;  ///< that has been begun and not ended
  std::int64_t step_ = 0;
  std::vector<ComparedValue> values_;
};

struct RoundOptions {
  BucketOptions buckets = {};
  /// On which gradients are averaged; those of parameters on others travel there and back.
  at::Device device = at::kCPU;
  int backward_passes_per_step = 1;
  bool sparse_as_dense = false;
  /// Gradients that no rank has in the first round have no bucket from then on.
  bool static_graph = false;
  /// The pass that averages may update before backward() has returned.
  bool updates_in_backward = false;
  /// Nothing: the size of buckets stays.
  std::optional<TuningOptions> tuning = {};
};

/// When an optimizer's buckets are laid out anew, and how: once in the order in which the first
/// rank's gradients have come, in the forms that BucketTuner tries; of shards, a hook's buckets and
/// the user's groups only for static_graph. The same on all ranks, which ask once a round. Thread
/// rule: one thread at a time.
class LayoutChanges {
 public:
  /// Collective. `options` outlive it.
  LayoutChanges(const Peers& peers, const RoundOptions& options, std::size_t gradients);

  /// Options of the next round's buckets; see bucket_layouts().
  BucketOptions options() const;
  const std::vector<std::size_t>& order() const { return order_; }
  bool leaves_out(std::size_t gradient) const { return left_out_[gradient]; }

  /// A gradient has come. Its first arrival counts.
  void note(std::size_t gradient);
  /// For the record, until the order is learned: those that have not come at the end.
  std::vector<std::size_t> arrivals() const;
  bool times_steps() const { return tuner_ && !tuner_->done(); }
  /// All ranks have ended a round. `present`: which gradients any rank has had.
  void end_round(const RoundAnswer& answer, const std::vector<bool>& present);
  /// After ranks have joined: what `root` has found, where this rank was not there. Collective.
  void take(int root);

  /// Whether next() may give something.
  bool pending() const { return pending_; }
  /// Before a round: options of its buckets, where they are to be made anew, in order().
  std::optional<BucketOptions> next(const std::vector<Parameter>& parameters,
                                    const std::vector<Bucket>& buckets);

 private:
  bool learns() const;
  void adopt(std::vector<std::size_t> order);

  const Peers peers_;
  const RoundOptions& options_;
  std::optional<BucketTuner> tuner_;
  std::vector<std::size_t> arrivals_;
  std::vector<std::size_t> order_;  ///< as registered, until it is learned
  bool learned_;                    ///< or never will be
  std::vector<bool> left_out_;
  std::int64_t layouts_ = 1;  ///< that buckets have had
  bool pending_ = false;
  bool joined_ = false;  ///< since the last layout
};

/// A round begins with the first complete gradient and ends with finish(). Every rank's rounds
/// average the same buckets, whichever gradients it has. One in which ranks turn out to be in
/// different steps is the last. After one of sharded gradients ranks agree whether they step.
/// Thread rule: one thread at a time, but before_gradient() and after_gradient() are for any.
class Round {
 public:
  /// The context must outlive it and stay where it is. Sharded parameters are all on one device.
  Round(const Peers& peers, std::vector<Parameter> parameters, const RoundOptions& options);
  /// Waits for what is under way, but not while an exception unwinds the stack.
  ~Round();

  const std::vector<Parameter>& parameters() const { return parameters_; }
  const at::Device& device() const { return options_.device; }
  const std::vector<Bucket>& buckets() const { return buckets_; }

  /// From the next round on gradients are multiplied by `factor` on their way into `.grad`, and
  /// checked; nothing: neither.
  void unscale_by(std::optional<double> factor) { unscale_ = factor; }
  /// Whether all checked gradients of the last round were finite, on any rank. Waits for the
  /// device.
  bool gradients_were_finite() const;
  /// From the next round on.
  void set_backward_passes(int passes) { passes_ = passes; }

  /// Before autograd adds to `.grad`: throws Error(invalid_use) where its memory belongs to a
  /// collective, and where static_graph has left it out; as check_in_step().
  void before_gradient(std::size_t index);
  /// A backward pass has added to `.grad`. The last one that is `counted` takes it into its bucket;
  /// the bucket's last gradient submits that. `delivered`: see GradientBucket::store().
  void after_gradient(std::size_t index, bool counted, const at::Tensor& delivered);

  /// True from the first complete gradient on until finish().
  bool is_open() const { return open_; }
  /// Whether any parameter was written to since the last round began.
  bool parameters_changed() const { return fingerprint() != fingerprint_before_; }
  /// True from the first gradient on until finish() or forget_passes().
  bool has_gradients() const { return has_gradients_; }
  /// Discards what passes have added up. Not in an open round.
  void forget_passes();
  /// Gradients that no hook has brought in the open round are absent, whatever `.grad` is.
  void leave_out_missing();
  /// Takes what no hook has brought, submits the remaining buckets, and sends the record. Not while
  /// a round before is unsettled(). `end`: what settle() will be called with. `updates`: see
  /// RoundFacts.
  void submit(RoundEnd end, bool updates, const std::optional<Compared>& compared);
  /// In an open round with updates_in_backward: sends the record now, in place of submit().
  void announce(bool updates, const std::optional<Compared>& compared) {
    naming_step([&] { send_record(RoundEnd::undecided, updates, compared); });
  }
  bool announced() const { return record_.sent(); }
  /// After announce(): whether all ranks step by the pass, compared alike, and have given the
  /// bucket in one step: peers find its gradients then, and present() holds for them. Does not
  /// wait.
  bool ready(std::size_t bucket);
  /// After ready(), once no rank reads them any more: gives the bucket's gradients back.
  void release(std::size_t bucket);
  /// Names, for a message, of the collectives under way that not all ranks have begun; empty: none.
  std::string awaited() const;
  /// After submit(): waits for all buckets. Throws the first error, Error(mismatch) on every rank
  /// where they are in different steps; the round is over then, too. Returns what it has cost.
  OptimizerStatistics finish();
  /// After finish(): what all ranks have said.
  const RoundAnswer& answer() const { return record_.answer(); }
  /// After finish(): the pass that averages is to step; gradients stay where they are for it until
  /// end_update().
  bool updates() const { return record_.answer().all_update; }
  void end_update() {
    for (const Bucket& bucket : buckets_) bucket.memory->give_back_gradients();
  }
  /// After finish(): whether any rank had the gradient.
  bool present(std::size_t index) const { return present_[index]; }

  /// There has been a sharded round, and no settle() since.
  bool unsettled() const { return unsettled_.has_value(); }
  /// Where unsettled(): sends `end` to the others, and does not wait; whether all have sent theirs.
  bool tell_end(RoundEnd end);
  /// As tell_end(), and waits. Throws Error(mismatch), the same on every rank, where some step and
  /// some discard. Before step() and zero_grad() are noted. Collective.
  void settle(RoundEnd end);
  /// After submit(), in place of finish(): leaves what ranks need that find steps to differ. Peers
  /// that end the round later lack only what hooks exchange after the averages.
  void leave() { tell_calls(calls_); }
  /// Throws the error of the last round, once ranks have turned out to be in different steps.
  void check_in_step() const;
  /// For the step that rounds to come belong to; after restart_steps() all ranks count anew.
  void note_step() { calls_.steps += 1; }
  void note_zero_grad() { calls_.zero_grads += 1; }
  void restart_steps() { calls_ = calls_before_ = {}; }
  void take_layout(int root) { changes_.take(root); }

 private:
  using Clock = std::chrono::steady_clock;

  struct Slot {
    std::optional<std::size_t> bucket;
    std::size_t place = 0;
    bool stored = false;  ///< in this round
  };

  bool on_host() const { return options_.device.is_cpu(); }
  /// The record goes with the first complete gradient, when the round's end is open.
  bool announces() const { return options_.updates_in_backward && options_.buckets.fused; }
  void make_buckets(const BucketOptions& options);
  Bucket& bucket_of(std::size_t index) { return buckets_[*slots_[index].bucket]; }
  bool is_missing(std::size_t index) const { return slots_[index].bucket && !slots_[index].stored; }
  void note_stored(std::size_t index);
  std::uint64_t fingerprint() const;
  void begin_round();
  void lay_out_anew();
  void store(std::size_t index, const at::Tensor& delivered = {});
  void give_to_stand_in(std::size_t index);
  void take_from_stand_in(std::size_t index);
  void send_record(RoundEnd end, bool updates, const std::optional<Compared>& compared);
  void begin_apart();
  void wait();
  void check_one_step();
  void tell_calls(const StepCalls& calls);
  /// Throws the same Error(mismatch) on every rank: which are in which step, and what to do.
  /// `updated`: some parameters may hold this step's update already, on all ranks alike.
  [[noreturn]] void refuse_steps(const StepCalls& calls, bool updated);
  void publish();
  void end_round();
  /// Where a rank has left, the action's error says in which step this one is.
  void naming_step(const std::function<void()>& action) const;

  const Peers peers_;
  const std::vector<Parameter> parameters_;
  const std::vector<ParameterForm> forms_;
  const RoundOptions options_;
  Mutex mutex_;  ///< of the hooks
  bool open_ = false;
  std::size_t held_bytes_ = 0;  ///< of this round's gradients
  std::size_t most_held_bytes_ = 0;
  std::optional<double> unscale_;  ///< of rounds to come
  int passes_;                     ///< that complete a gradient
  std::vector<int> counts_;        ///< of passes, by parameter
  bool has_gradients_ = false;
  StepCalls calls_;         ///< since the begin, the same on all ranks
  StepCalls calls_before_;  ///< likewise, before the round
  std::size_t step_lane_ = 0;
  std::optional<Error> different_steps_;
  std::uint64_t fingerprint_before_ = 0;  ///< of the parameters, when the round began
  std::vector<bool> own_present_;         ///< by parameter, on this rank
  std::vector<bool> present_;             ///< by parameter, after finish()
  LayoutChanges changes_;
  std::chrono::nanoseconds in_flight_before_{0};
  Clock::time_point submitted_at_;
  std::chrono::nanoseconds step_time_{0};  ///< between the last two submit()
  /// The parameters; one on another device is replaced by a stand-in where gradients are averaged,
  /// of its name, type, shape and strides, and without values.
  const std::vector<Parameter> averaged_;
  std::vector<Bucket> buckets_;
  std::vector<Slot> slots_;  ///< by parameter
  RoundRecord record_;
  RoundRecord ends_;                      ///< where some ranks' record has left their end open
  std::optional<RoundAnswer> unsettled_;  ///< of the round whose gradients are sharded
  /// By rank in the set: that it reports (one that has joined does not), its world rank, its calls.
  std::vector<std::int64_t> all_calls_;
  Handle all_calls_handle_;
};

}  // namespace hora::internal
