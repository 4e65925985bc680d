#include "examples/cifar10/model.h"

#include <hora/torch.h>
#include <spdlog/fmt/fmt.h>

#include <algorithm>
#include <cstdint>
#include <optional>
#include <stdexcept>

namespace cifar10 {

torch::Device choose_device(const hora::Context& world, const Arguments& arguments) {
  const torch::Device own = hora::local_device(world);
  if (arguments.device == DeviceChoice::cuda && !own.is_cuda()) {
    throw std::runtime_error(
        "--device cuda: this job has no GPU on every rank, or hora was built without CUDA "
        "(preset cuda)");
  }
  const torch::Device device = arguments.device == DeviceChoice::cpu ? torch::kCPU : own;
  if (arguments.amp == Precision::float16 && !device.is_cuda()) {
    throw std::runtime_error("--amp fp16 needs --device cuda; on the CPU, use bf16");
  }
  return device;
}

std::shared_ptr<vision::Classifier> make_model(const Arguments& arguments,
                                               const torch::Device& device, std::size_t classes,
                                               std::size_t steps_an_epoch) {
  torch::manual_seed(arguments.seed);
  const std::shared_ptr<vision::Classifier> model =
      vision::make_model(arguments.architecture, {.classes = static_cast<std::int64_t>(classes),
                                                  .stem = arguments.stem,
                                                  .channels_last = arguments.channels_last});
  // The default, 0.1, keeps a third of the old running statistics after 11 steps. With 3 / steps
  // an epoch, however short, leaves a twentieth.
  const double momentum = std::clamp(3.0 / static_cast<double>(steps_an_epoch), 0.1, 1.0);
  for (const auto& module : model->modules()) {
    if (auto* norm = module->as<torch::nn::BatchNorm2d>()) {
      norm->options.momentum(momentum);
    }
  }
  model->to(device);
  return model;
}

std::string describe(const vision::Classifier& model) {
  std::int64_t values = 0;
  for (const auto& parameter : model.parameters()) {
    values += parameter.numel();
  }
  const std::optional<vision::Stem>& stem = model.options().stem;
  return fmt::format("{}{}, {} values", model.architecture().name,
                     !stem                          ? ""
                     : *stem == vision::Stem::cifar ? " with the CIFAR stem"
                                                    : " with torchvision's stem",
                     values);
}

}  // namespace cifar10
