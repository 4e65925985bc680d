#include "examples/vision/optim/optimizer_settings.h"

#include <array>
#include <stdexcept>

namespace vision {
namespace {

constexpr std::array table{
    OptimizerKind{"sgd", "SGD with momentum", true},
    OptimizerKind{"lars", "SGD with layer-wise rates, for large batches (arXiv 1708.03888)", false},
    OptimizerKind{"lamb", "Adam with layer-wise rates, for large batches (arXiv 1904.00962)",
                  false},
    OptimizerKind{"adam", "Adam", true},
    OptimizerKind{"adamw", "Adam with decoupled weight decay", true},
};

}  // namespace

std::span<const OptimizerKind> optimizer_kinds() {
  return table;
}

const OptimizerKind& optimizer_kind(std::string_view name) {
  std::string names;
  for (const OptimizerKind& kind : table) {
    if (kind.name == name) return kind;
    names += (names.empty() ? "" : ", ") + std::string(kind.name);
  }
  throw std::invalid_argument("there is no optimizer '" + std::string(name) + "'; there are " +
                              names);
}

}  // namespace vision
