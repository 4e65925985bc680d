/// What training_step is asked for.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace bench {

/// Before any is timed: LibTorch's first steps are slow.
inline constexpr int warm_up_steps = 4;
/// Of a contender that was made anew in a warm process.
inline constexpr int warm_up_steps_again = 2;

struct StepOptions {
  std::string network = "resnet18";
  std::int64_t batch = 0;  ///< samples a rank; 0: the network's own
  int blocks = 12;         ///< of each contender
  int steps = 8;           ///< timed, of a block
  int threads = 1;         ///< LibTorch's, a rank
  std::size_t bucket_bytes = 0;
  std::vector<std::string> contenders;
  bool record = false;
};

}  // namespace bench
