#include "tests/examples/vision/models/formula.h"

#include <cmath>
#include <string>

namespace vision {
namespace {

/// Multiples of 2^-24 in [0, 1).
class Uniform {
 public:
  explicit Uniform(std::string_view name) : state_(fnv1a(name)) {}
  double next() {
    state_ = state_ * 6364136223846793005U + 1442695040888963407U;
    return static_cast<double>(state_ >> 40U) * 0x1p-24;
  }

 private:
  std::uint64_t state_;
};

// In the order of indices, whatever the order in memory.
void draw(std::string_view name, double low, double high, const torch::Tensor& tensor) {
  Uniform uniform(name);
  const torch::Tensor drawn = torch::empty(tensor.sizes());
  auto* const values = drawn.data_ptr<float>();
  for (std::int64_t i = 0; i < drawn.numel(); ++i) {
    values[i] = static_cast<float>(low + (high - low) * uniform.next());
  }
  tensor.copy_(drawn);
}

void fill(const std::string& name, const torch::Tensor& tensor) {
  if (name.ends_with("num_batches_tracked")) {
    tensor.fill_(1);
  } else if (name.ends_with("bias") || name.ends_with("running_mean")) {
    draw(name, -0.25, 0.25, tensor);
  } else if (tensor.dim() > 1) {
    const auto fan_in = static_cast<double>(tensor[0].numel());
    const double high = std::pow(2.0, -std::round(0.5 * std::log2(fan_in / 6)));
    draw(name, -high, high, tensor);
  } else {
    draw(name, 0.5, 1.5, tensor);
  }
}

}  // namespace

std::uint64_t fnv1a(std::string_view text) {
  std::uint64_t state = 0xcbf29ce484222325U;
  for (const char character : text) {
    state = (state ^ static_cast<unsigned char>(character)) * 0x100000001b3U;
  }
  return state;
}

void fill_by_formula(Classifier& model) {
  const torch::NoGradGuard no_grad;
  for (const auto& parameter : model.named_parameters()) {
    fill(parameter.key(), parameter.value());
  }
  for (const auto& buffer : model.named_buffers()) {
    fill(buffer.key(), buffer.value());
  }
}

void fill_weights_by_formula(Classifier& model) {
  const torch::NoGradGuard no_grad;
  for (const auto& parameter : model.named_parameters()) {
    if (parameter.value().dim() > 1) {
      fill(parameter.key(), parameter.value());
    } else if (parameter.key().ends_with("bias")) {
      parameter.value().zero_();
    }
  }
}

std::vector<std::uint8_t> formula_bytes(std::string_view name, std::size_t count) {
  Uniform uniform(name);
  std::vector<std::uint8_t> bytes(count);
  for (std::uint8_t& byte : bytes) byte = static_cast<std::uint8_t>(256 * uniform.next());
  return bytes;
}

torch::Tensor formula_images(std::int64_t side) {
  const torch::Tensor images = torch::empty({4, 3, side, side});
  draw("images", -1, 1, images);
  return images;
}

}  // namespace vision
