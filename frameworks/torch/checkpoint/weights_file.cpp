#include <ATen/core/grad_mode.h>
#include <hora/error.h>
#include <hora/printable.h>
#include <hora/torch/safetensors.h>

#include <cstdint>
#include <limits>
#include <memory>
#include <sstream>
#include <utility>

#include "frameworks/torch/checkpoint/durable_file.h"
#include "frameworks/torch/checkpoint/tensor_image.h"

namespace hora {
using namespace internal;
namespace {

[[noreturn]] void refuse_weights(const std::string& name, const std::string& what) {
  throw Error(ErrorCode::invalid_argument, "load_weights(): " + in_quotes(name) + " " + what, -1,
              name);
}

std::string shape_text(const torch::Tensor& tensor) {
  std::ostringstream text;
  text << tensor.sizes();
  return text.str();
}

}  // namespace

void save_safetensors(const std::string& path, const NamedTensors& tensors) {
  TensorImage image;
  image.fill(tensors);
  replace_durably(path, image.bytes());
}

NamedTensors load_safetensors(const std::string& path) {
  auto bytes = read_file(path, std::numeric_limits<std::int64_t>::max());
  const auto refuse = [&](const std::string& what) {
    throw Error(ErrorCode::invalid_argument, in_quotes(path) + ": " + what);
  };
  if (!bytes) refuse(bytes.error());
  auto contents = contents_of(std::make_shared<const Bytes>(std::move(*bytes)));
  if (!contents) refuse(contents.error());
  NamedTensors own;
  for (const auto& item : contents->tensors) own.insert(item.key(), item.value().clone());
  return own;
}

NamedTensors weights_of(const torch::nn::Module& module) {
  NamedTensors weights = module.named_parameters();
  for (const auto& item : module.named_buffers()) {
    if (item.value().defined()) weights.insert(item.key(), item.value());
  }
  return weights;
}

void load_weights(torch::nn::Module& module, const NamedTensors& weights) {
  const NamedTensors own = weights_of(module);
  for (const auto& item : own) {
    const torch::Tensor* const given = weights.find(item.key());
    if (given == nullptr) refuse_weights(item.key(), "is in the module, but not in the weights");
    if (given->sizes() != item.value().sizes()) {
      refuse_weights(item.key(), "has the shape " + shape_text(*given) +
                                     " in the weights; expected the module's, " +
                                     shape_text(item.value()));
    }
  }
  for (const auto& item : weights) {
    if (!own.contains(item.key())) {
      refuse_weights(item.key(), "is in the weights, but not in the module");
    }
  }
  const at::NoGradGuard no_grad;
  for (const auto& item : own) {
    torch::Tensor into = item.value();
    into.copy_(weights[item.key()]);
  }
}

}  // namespace hora
