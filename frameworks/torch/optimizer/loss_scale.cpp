#include "frameworks/torch/optimizer/loss_scale.h"

#include <hora/error.h>

#include <algorithm>
#include <iomanip>
#include <limits>
#include <sstream>
#include <string>

namespace hora::internal {

LossScale next_scale(const LossScale& now, const GradScalerOptions& options, bool finite) {
  using Float = std::numeric_limits<float>;
  if (!finite) {
    return {std::max(now.scale * options.backoff_factor, static_cast<double>(Float::min())), 0};
  }
  if (now.finite_steps + 1 < options.growth_interval) return {now.scale, now.finite_steps + 1};
  const double grown = now.scale * options.growth_factor;
  return {grown <= static_cast<double>(Float::max()) ? grown : now.scale, 0};
}

void check_options(const GradScalerOptions& options) {
  const auto require = [](bool good, const char* name, double value, const char* allowed) {
    if (good) return;
    throw Error(ErrorCode::invalid_argument, std::string("GradScaler: ") + name + " is " +
                                                 std::to_string(value) + "; expected " + allowed);
  };
  require(options.initial_scale > 0 &&
              options.initial_scale <= static_cast<double>(std::numeric_limits<float>::max()),
          "initial_scale", options.initial_scale, "more than 0, and what float32 can hold");
  require(options.growth_factor >= 1, "growth_factor", options.growth_factor, "1 or more");
  require(options.backoff_factor > 0 && options.backoff_factor <= 1, "backoff_factor",
          options.backoff_factor, "more than 0, and 1 at most");
  require(options.growth_interval >= 1, "growth_interval", options.growth_interval, "1 or more");
}

std::string describe(const GradScalerOptions& options) {
  if (!options.enabled) return "switched off";
  std::ostringstream text;
  text << std::setprecision(std::numeric_limits<double>::max_digits10) << "initial scale "
       << options.initial_scale << ", growth factor " << options.growth_factor
       << ", backoff factor " << options.backoff_factor << ", growth interval "
       << options.growth_interval;
  return text.str();
}

}  // namespace hora::internal
