/// How ranks put their gradients together.
#pragma once

#include <hora/torch/distributed_optimizer.h>
#include <hora/torch/finite_check.h>

#include <string>

#include "examples/vision/train/options.h"

namespace vision {

/// With a hook of its own each time, where the compression is one. Which options go together is
/// checked with the command line.
hora::DistributedOptimizerOptions distributed_options(const DistributionOptions& options);

/// `scaled`: a GradScaler scales the loss, and sees to infinite gradients itself.
hora::FiniteCheckOptions finite_check_options(const DistributionOptions& options, bool scaled);

/// "averaged, as float16, 4 backward passes a step".
std::string describe(const DistributionOptions& options);

}  // namespace vision
