/// Successive rounds of averaging: which gradients have arrived, and what is left to do.
#pragma once

#include <hora/hora.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "core/base/sync.h"
#include "frameworks/torch/optimizer/bucket_tuning.h"
#include "frameworks/torch/optimizer/gradient_buckets.h"
#include "frameworks/torch/optimizer/layout_changes.h"
#include "frameworks/torch/optimizer/round_exchanges.h"
#include "frameworks/torch/optimizer/stand_ins.h"
#include "frameworks/torch/optimizer/step_counters.h"
#include "frameworks/torch/peers.h"

namespace hora::internal {

/// A round begins with the first complete gradient and ends with finish(). Every rank's rounds
/// average the same buckets, whichever gradients it has. A round in which ranks turn out to be in
/// different steps is the last one. Sharded gradients can only be used by all ranks together: there
/// ranks agree after each round whether they step.
/// Thread rule: any thread; backward() calls the hooks from threads of LibTorch's choice.
class GradientAverager {
 public:
  struct Options {
    BucketOptions buckets = {};
    /// On which gradients are averaged; those of parameters on others travel there and back.
    at::Device device = at::kCPU;
    int backward_passes_per_step = 1;
    bool sparse_as_dense = false;
    bool static_graph = false;
    /// The pass that averages may update before backward() has returned.
    bool updates_in_backward = false;
    /// Nothing: the size of buckets stays.
    std::optional<BucketTuning::Options> tuning = {};
  };
  /// Cost of a round.
  struct Cost {
    std::chrono::nanoseconds waited{0};
    std::chrono::nanoseconds in_flight{0};
    std::size_t gradient_bytes = 0;  ///< of stored gradients that were held at once, the most
  };

  /// The context must outlive it and stay where it is. Sharded parameters are all on one device.
  GradientAverager(const Peers& peers, std::vector<Parameter> parameters, const Options& options);
  /// Waits for what is under way, but not while an exception unwinds the stack.
  ~GradientAverager();
  GradientAverager(const GradientAverager&) = delete;
  GradientAverager& operator=(const GradientAverager&) = delete;

  const std::vector<Parameter>& parameters() const { return parameters_; }
  const at::Device& device() const { return options_.device; }

  /// From the next round on gradients are multiplied by `factor` on their way into `.grad`, and
  /// checked; nothing: neither.
  void unscale_by(std::optional<double> factor);
  /// Whether all gradients of the last round were finite, where they have been checked: the same
  /// on all ranks. Waits for the device.
  bool gradients_were_finite() const;
  /// From the next round on.
  void set_backward_passes(int passes);

  /// Before autograd adds to `.grad` of parameter `index`: throws Error(invalid_use) where its
  /// memory belongs to a collective since an earlier backward, and where static_graph has left it
  /// out; what check_in_step() throws.
  void before_gradient(std::size_t index);
  /// A backward pass has added to `.grad` of parameter `index`. With the last pass of its step, and
  /// where passes are `counted`: into its bucket with it; the last one submits.
  /// `delivered`: what autograd has added, see facts_of_memory().
  void after_gradient(std::size_t index, bool counted, const at::Tensor& delivered);

  /// True from the first complete gradient on until finish().
  bool round_open() const;
  /// Whether any parameter was written to since the last round began.
  bool parameters_changed() const;
  /// True from the first gradient on until finish() or forget_passes().
  bool has_gradients() const;
  /// Discards what passes have added up. Not in an open round.
  void forget_passes();
  /// Gradients that no hook has brought in the open round are absent, whatever `.grad` is.
  void leave_out_missing();
  /// Takes what no hook has brought (a gradient that is there is stored, others are absent), and
  /// submits the remaining buckets. Not while a round before is unsettled(). `end`: what settle()
  /// will be called with, if that is known. `updates`: this rank can step by the pass that averages
  /// (FusedRounds), and will.
  void submit(RoundEnd end, bool updates = false);
  /// In an open round, where the pass that averages may update (FusedRounds): tells the others now,
  /// once a round, in place of submit(), whether this rank will step by it. Does not wait.
  void answer(bool updates);
  bool answered() const;
  /// Whether this rank has given all gradients of the bucket in this round.
  bool submitted(std::size_t bucket) const;
  /// After answer(): whether all ranks step by the pass, and have given the bucket in one step. Its
  /// gradients are where peers find them then, and present() holds for them. Does not wait.
  bool ready(std::size_t bucket);
  /// After ready(), once no rank reads them any more: gives the memory of the bucket's gradients
  /// back.
  void release(std::size_t bucket);
  /// Names of the collectives under way that not all ranks have begun.
  std::vector<std::string> awaited() const;
  /// After submit(): waits for all buckets. Throws the first error; the round is over then, too.
  /// Error(mismatch), the same on every rank, where ranks are in different steps.
  Cost finish();
  /// After finish(): the gradients are where peers find them, for the pass that averages to step
  /// with. They stay there until end_update().
  bool updates() const;
  void end_update();
  /// There has been a sharded round, and no settle() since.
  bool unsettled() const;
  /// Where unsettled(): sends `end` to the others, and does not wait; whether all have sent theirs.
  bool tell_end(RoundEnd end);
  /// Likewise, and waits until every rank has. Error(mismatch), the same on every rank, where
  /// some step and some discard. Before step() and zero_grad() are noted. Collective.
  void settle(RoundEnd end);
  /// After submit(), in place of finish(): this rank does not take part in the rest of the round.
  /// Peers that end it later lack only what hooks exchange after the averages.
  void leave();
  /// Throws the error of the last round, once ranks have turned out to be in different steps.
  void check_in_step() const;
  /// For the step that rounds to come belong to; after restart_steps() all ranks count anew.
  void note_step();
  void note_zero_grad();
  void restart_steps();

  /// After ranks have joined: the order and the size of buckets that `root` has found, where this
  /// rank was not there. Collective.
  void take_layout(int root);

  /// After finish(): whether any rank had the gradient.
  bool present(std::size_t index) const;
  const GradientBuckets& buckets() const { return *buckets_; }

 private:
  std::uint64_t fingerprint() const;
  void begin_round();
  void lay_out_anew();
  void store(std::size_t index, const at::Tensor& delivered = {});
  void submit_rest();
  void wait();
  /// Answers once a round, and returns this rank's answer.
  bool answer_once(bool updates);
  void check_one_step();
  [[noreturn]] void refuse_steps(const StepCalls& calls, bool updated);
  void publish();
  void end_round();
  /// Where a rank has left, the action's error says in which step this one is.
  void naming_step(const std::function<void()>& action) const;

  const Peers peers_;
  const std::vector<Parameter> parameters_;
  const std::vector<ParameterForm> forms_;
  const Options options_;
  mutable Mutex mutex_;
  bool open_ = false;
  std::optional<bool> answer_;  ///< in this round, see FusedRounds
  std::size_t held_bytes_ = 0;  ///< of this round's gradients
  std::size_t most_held_bytes_ = 0;
  std::optional<double> unscale_;  ///< of rounds to come
  PassCounter passes_;
  StepCounter steps_;
  StepsExchange steps_exchange_;
  std::optional<Error> different_steps_;
  std::uint64_t fingerprint_before_ = 0;  ///< of the parameters, when the round began
  std::vector<bool> present_;             ///< by parameter, after finish()
  LayoutChanges changes_;
  std::chrono::nanoseconds in_flight_before_{0};
  std::chrono::steady_clock::time_point waiting_since_;
  const StandIns stand_ins_;
  std::optional<GradientBuckets> buckets_;    ///< always there
  std::optional<PresenceExchange> presence_;  ///< where the buckets cannot say
  std::optional<RoundEndExchange> ends_;      ///< where gradients are sharded
  bool unsettled_ = false;
};

}  // namespace hora::internal
