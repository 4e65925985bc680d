#include "examples/vision/train/precision_options.h"

#include <charconv>
#include <limits>
#include <stdexcept>
#include <system_error>

namespace vision {

LossScale parse_loss_scale(const std::string& text) {
  if (text == "dynamic") return {};
  double scale = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), scale);
  const bool is_number = error == std::errc() && end == text.data() + text.size();
  // NaN is not above 0.
  if (!is_number || !(scale > 0) ||
      scale > static_cast<double>(std::numeric_limits<float>::max())) {
    throw std::invalid_argument("'" + text +
                                "' is not a loss scale; expected dynamic, or a number above 0 that "
                                "float32 can hold, such as 128");
  }
  return {scale};
}

}  // namespace vision
