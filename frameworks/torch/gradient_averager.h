/// One round of averaging after the other: which gradients have come, which buckets are under way.
#pragma once

#include <hora/hora.h>

#include <chrono>
#include <cstddef>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "frameworks/torch/gradient_bucket.h"
#include "frameworks/torch/presence.h"

namespace hora {

/// A round begins with the first gradient and ends with finish(). Every rank's rounds average the
/// same buckets, whichever gradients it has.
/// Thread rule: any thread; backward() calls the hooks from threads of LibTorch's choice.
class GradientAverager {
 public:
  struct Options {
    std::string name;  ///< of the collectives: "<name>.<bucket>"
    ReduceOp op = ReduceOp::average;
    std::size_t bucket_bytes = 0;
    Compression compression = Compression::none;
  };
  /// What a round has cost.
  struct Cost {
    std::chrono::nanoseconds waited{0};
    std::chrono::nanoseconds in_flight{0};
  };

  /// `context` must outlive it and stay where it is. The parameters are all on one device.
  GradientAverager(const Context& context, std::vector<Parameter> parameters,
                   const Options& options);
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

  /// Before autograd adds to `.grad` of parameter `index`: throws Error(invalid_use) where its
  /// memory belongs to a collective since an earlier backward.
  void before_gradient(std::size_t index);
  /// `.grad` of parameter `index` is complete: into its bucket with it; the last one submits.
  void after_gradient(std::size_t index);

  /// True from the first gradient on until finish().
  bool round_open() const;
  /// Takes what no hook has brought (a gradient that is there is stored, others are absent),
  /// submits the remaining buckets and waits for all. Throws the first error; the round is over
  /// then, too.
  Cost finish();

 private:
  struct Slot {
    std::size_t bucket = 0;
    std::size_t place = 0;
    bool stored = false;  ///< in this round
  };
  struct Submission {
    std::string name;
    std::size_t missing = 0;         ///< gradients not stored in this round
    std::vector<std::size_t> slots;  ///< by place
    bool submitted = false;
    Handle handle;
  };

  void begin_round();
  void store(std::size_t index);
  void submit(std::size_t bucket);
  void complete(std::size_t bucket);
  void end_round();

  const Context& context_;
  const ReduceOp op_;
  const std::vector<Parameter> parameters_;
  mutable std::mutex mutex_;
  bool open_ = false;
  std::optional<double> unscale_;  ///< of rounds to come
  std::chrono::nanoseconds in_flight_before_{0};
  std::vector<Slot> slots_;  // by parameter
  std::vector<std::unique_ptr<GradientBucket>> buckets_;
  std::optional<PresenceExchange> presence_;  ///< where the buckets cannot tell
  std::vector<Submission> submissions_;       // by bucket; after buckets_: handles go first
};

}  // namespace hora
