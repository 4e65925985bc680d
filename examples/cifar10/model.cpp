#include "examples/cifar10/model.h"

#include <hora/torch.h>

#include <algorithm>
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

ResNet18 make_model(const Arguments& arguments, const torch::Device& device, std::size_t classes,
                    std::size_t steps_an_epoch) {
  torch::manual_seed(arguments.seed);
  ResNet18 model(static_cast<std::int64_t>(classes), arguments.stem);
  // The default, 0.1, keeps a third of the old running statistics after 11 steps. With 3 / steps
  // an epoch, however short, leaves a twentieth.
  const double momentum = std::clamp(3.0 / static_cast<double>(steps_an_epoch), 0.1, 1.0);
  for (const auto& module : model->modules()) {
    if (auto* norm = module->as<torch::nn::BatchNorm2d>()) {
      norm->options.momentum(momentum);
    }
  }
  model->to(device);
  if (arguments.channels_last) {
    const torch::NoGradGuard no_grad;
    for (auto& parameter : model->parameters()) {
      if (parameter.dim() == 4) {
        parameter.set_data(parameter.contiguous(torch::MemoryFormat::ChannelsLast));
      }
    }
  }
  return model;
}

}  // namespace cifar10
