/// How ranks put their gradients together.
#pragma once

#include <hora/distributed_optimizer.h>

#include <string>

#include "examples/vision/train/options.h"

namespace vision {

/// With a hook of its own each time, where the compression is one. Which options go together is
/// checked with the command line.
hora::DistributedOptimizerOptions distributed_options(const DistributionOptions& options);

/// "averaged, as float16, 4 backward passes a step".
std::string describe(const DistributionOptions& options);

}  // namespace vision
