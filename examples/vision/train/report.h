/// The results of a run, for programs to read.
#pragma once

#include <optional>
#include <string>

namespace vision {

struct Report {
  double best_accuracy = 0;      ///< validation top-1 of the best epoch, in percent
  double images_per_second = 0;  ///< training images over all ranks, validation left out
  double hidden_share = 0;       ///< of averaging behind backward, 0 .. 1, mean over ranks
  int ranks = 0;
  int nodes = 0;
  std::string data = {};  ///< DataSets::id()
  int epochs = 0;         ///< made, in earlier runs, too
  /// From the training's begin, without the time between runs, to the desired accuracy; unset: not
  /// reached.
  std::optional<double> seconds_to_accuracy = {};
  bool stopped = false;  ///< by a signal, before the training's end; not for a file
};

/// A JSON object with the fields' names.
std::string to_json(const Report& report);

}  // namespace vision
