/// One round of averaging after the other: which gradients have come, what is left to do.
#pragma once

#include <hora/hora.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "core/thread_safety.h"
#include "frameworks/torch/optimizer/gradient_buckets.h"
#include "frameworks/torch/optimizer/gradient_order.h"
#include "frameworks/torch/optimizer/pass_counter.h"
#include "frameworks/torch/optimizer/presence.h"
#include "frameworks/torch/peers.h"

namespace hora {

/// A round begins with the first complete gradient and ends with finish(). Every rank's rounds
/// average the same buckets, whichever gradients it has.
/// Thread rule: any thread; backward() calls the hooks from threads of LibTorch's choice.
class GradientAverager {
 public:
  struct Options {
    BucketOptions buckets = {};
    int backward_passes_per_step = 1;
    bool sparse_as_dense = false;
    bool static_graph = false;
  };
  /// What a round has cost.
  struct Cost {
    std::chrono::nanoseconds waited{0};
    std::chrono::nanoseconds in_flight{0};
  };

  /// The context must outlive it and stay where it is. The parameters are all on one device.
  GradientAverager(const Peers& peers, std::vector<Parameter> parameters, const Options& options);
  /// Waits for what is under way, but not while an exception unwinds the stack.
  ~GradientAverager();
  GradientAverager(const GradientAverager&) = delete;
  GradientAverager& operator=(const GradientAverager&) = delete;

  const std::vector<Parameter>& parameters() const { return parameters_; }

  /// From the next round on gradients are multiplied by `factor` on their way into `.grad`, and
  /// looked at; nothing: neither.
  void unscale_by(std::optional<double> factor);
  /// Whether all gradients of the last round were finite, where they have been looked at: the same
  /// on all ranks. Waits for the device.
  bool gradients_were_finite() const;
  /// From the next round on.
  void set_backward_passes(int passes);

  /// Before autograd adds to `.grad` of parameter `index`: throws Error(invalid_use) where its
  /// memory belongs to a collective since an earlier backward, and where static_graph has left it
  /// out.
  void before_gradient(std::size_t index);
  /// A backward pass has added to `.grad` of parameter `index`. With the last pass of its step, and
  /// where passes are `counted`: into its bucket with it; the last one submits.
  void after_gradient(std::size_t index, bool counted);

  /// True from the first complete gradient on until finish().
  bool round_open() const;
  /// Whether any parameter was written to since the last round began.
  bool parameters_changed() const;
  /// True from the first gradient on until finish() or forget_passes().
  bool has_gradients() const;
  /// What passes have added up is not wanted. Not in an open round.
  void forget_passes();
  /// Takes what no hook has brought (a gradient that is there is stored, others are absent),
  /// submits the remaining buckets and waits for all. Throws the first error; the round is over
  /// then, too.
  Cost finish();

  /// With static_graph, after ranks have joined: the order that `root` has learned, where this rank
  /// was not there. Collective.
  void take_order(int root);

  /// After finish(): whether any rank had the gradient.
  bool present(std::size_t index) const;
  const GradientBuckets& buckets() const { return *buckets_; }

 private:
  std::uint64_t fingerprint() const;
  void begin_round();
  void store(std::size_t index);
  void publish();
  void end_round();

  const Peers peers_;
  const std::vector<Parameter> parameters_;
  const std::vector<ParameterForm> forms_;
  const Options options_;
  mutable Mutex mutex_;
  bool open_ = false;
  std::optional<double> unscale_;  ///< of rounds to come
  PassCounter passes_;
  std::uint64_t fingerprint_before_ = 0;  ///< of the parameters, when the round began
  std::vector<bool> present_;             ///< by parameter, after finish()
  std::chrono::nanoseconds in_flight_before_{0};
  std::optional<GradientBuckets> buckets_;    ///< always there; made anew by static_graph
  std::optional<PresenceExchange> presence_;  ///< where the buckets cannot tell
  std::optional<GradientOrder> order_;        ///< while it is being learned
  std::vector<std::size_t> learned_order_;
  bool lays_out_anew_ = false;  ///< with the next round, in the learned order
};

}  // namespace hora
