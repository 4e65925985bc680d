/// How far a training is.
#pragma once

#include <hora/torch/distributed_sampler.h>

#include <cstdint>
#include <string>
#include <string_view>

namespace vision {

/// All but `loss` and `images` is the same on every rank.
struct TrainingProgress {
  /// Of the next step. Its epoch is the number of epochs that are done, with their validation.
  hora::SamplerPosition position = {};
  std::int64_t steps = 0;    ///< made, in all epochs
  double loss = 0;           ///< sum over this rank's images of this epoch so far
  double images = 0;         ///< their number; a share of all ranks' after an interruption
  double best_accuracy = 0;  ///< percent; 0 before the first validation
  double seconds = 0;        ///< since the begin, without the time between runs
  bool operator==(const TrainingProgress&) const = default;
};

/// "after epoch 3", "in epoch 4, after 96 of 128 images", "before epoch 1".
std::string describe(const TrainingProgress& progress);

/// A JSON object, from which progress_from() gives the same values to the bit.
std::string to_text(const TrainingProgress& progress);
/// Throws std::runtime_error, which names the field, for a text that is none of to_text().
TrainingProgress progress_from(std::string_view text);

}  // namespace vision
