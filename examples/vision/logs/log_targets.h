/// Where the course of a training is written to.
#pragma once

#include <cstddef>
#include <string>

namespace vision {

/// Empty: nowhere.
struct LogTargets {
  std::string json = {};         ///< file, replaced where it exists, unless `append`
  std::string tensorboard = {};  ///< folder of one run
  bool append = false;           ///< what the JSON file holds stays, but for half a last line
  std::size_t every = 10;  ///< so many steps become one entry, at least 1; an epoch's last ones too
};

}  // namespace vision
