/// What a command line says of precision: values, without LibTorch.
#pragma once

#include <optional>
#include <string>

namespace vision {

/// The type of `--amp`.
enum class Amp { off, float16, bfloat16 };

/// `--opt-level`, as NVIDIA Apex names and means them.
enum class OptLevel {
  O0,  ///< all in float32
  O1,  ///< autocast: convolutions and matrix products in 16 bits, weights stay float32
  O2,  ///< the model in 16 bits but for BatchNorm; float32 master weights, which the optimizer
       ///< steps
};

/// `--loss-scale`.
struct LossScale {
  std::optional<double> fixed =
      std::nullopt;  ///< unset: dynamic; set: above 0, and what float32 can hold
};

/// "dynamic" or a number. Throws std::invalid_argument, which says what is allowed.
LossScale parse_loss_scale(const std::string& text);

/// Neither level nor amp: O0. amp without a level: O1, the loss scaled for float16 alone, which
/// needs it. A level without amp: float16, and bfloat16 where the device has no float16; O1 and O2
/// scale the loss, dynamically.
struct PrecisionOptions {
  std::optional<OptLevel> level = std::nullopt;
  Amp amp = Amp::off;
  std::optional<LossScale> loss_scale = std::nullopt;  ///< unset: as above
};

}  // namespace vision
