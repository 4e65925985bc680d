#include "examples/vision/train/distribution.h"

#include <hora/torch/power_sgd.h>
#include <hora/torch/top_k.h>
#include <spdlog/fmt/fmt.h>

#include <memory>

namespace vision {

hora::DistributedOptimizerOptions distributed_options(const DistributionOptions& options) {
  hora::DistributedOptimizerOptions result{
      .op = options.adasum ? hora::ReduceOp::adasum : hora::ReduceOp::average,
      .backward_passes_per_step = options.accumulate,
      .gradient_predivide_factor = options.predivide};
  if (options.zero) result.sharding = hora::Sharding::state;
  if (options.fused_update) result.sharding = hora::Sharding::fused;
  switch (options.compression) {
    case GradientCompression::none:
      break;
    case GradientCompression::float16:
      result.compression = hora::Compression::float16;
      break;
    case GradientCompression::bfloat16:
      result.compression = hora::Compression::bfloat16;
      break;
    case GradientCompression::top_k:
      result.hook = std::make_shared<hora::TopK>(hora::TopKOptions{.share = options.top_k_share});
      break;
    case GradientCompression::power_sgd:
      result.hook =
          std::make_shared<hora::PowerSgd>(hora::PowerSgdOptions{.rank = options.power_sgd_rank});
      break;
  }
  return result;
}

hora::FiniteCheckOptions finite_check_options(const DistributionOptions& options, bool scaled) {
  hora::FiniteCheckOptions result{.gradients = !scaled};
  switch (options.non_finite) {
    case NonFinite::raise:
      result.policy = hora::NonFinitePolicy::raise;
      break;
    case NonFinite::skip:
      result.policy = hora::NonFinitePolicy::skip;
      break;
    case NonFinite::ignore:
      result.policy = hora::NonFinitePolicy::ignore;
      break;
  }
  return result;
}

std::string describe(const DistributionOptions& options) {
  std::string text = options.adasum ? "combined by Adasum" : "averaged";
  switch (options.compression) {
    case GradientCompression::none:
      break;
    case GradientCompression::float16:
      text += ", as float16";
      break;
    case GradientCompression::bfloat16:
      text += ", as bfloat16";
      break;
    case GradientCompression::top_k:
      text += fmt::format(", the largest {:g} %", 100 * options.top_k_share);
      break;
    case GradientCompression::power_sgd:
      text += fmt::format(", by PowerSGD of rank {}", options.power_sgd_rank);
      break;
  }
  if (options.accumulate > 1)
    text += fmt::format(", {} backward passes a step", options.accumulate);
  if (options.zero) text += ", optimizer's state in shares (ZeRO)";
  if (options.fused_update) text += ", updated by the pass that averages";
  return text;
}

}  // namespace vision
