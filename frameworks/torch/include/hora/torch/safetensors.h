/// Files of named tensors in the format "safetensors", which Python's package of this name reads
/// and writes as well (github.com/huggingface/safetensors). With torchvision's names of parameters
/// and buffers they are weights for torchvision's models, and the other way round:
///
///     hora::save_safetensors("resnet50.safetensors", hora::weights_of(*model));
///     hora::load_weights(*model, hora::load_safetensors("resnet50.safetensors"));
///
/// and in Python `model.load_state_dict(safetensors.torch.load_file("resnet50.safetensors"))`.
/// Nothing in such a file is run; each length and offset in it is checked before it is used.
///
/// Errors: Error(invalid_argument) that names the path or the tensor, and says what is wrong.
/// Thread rule: any thread, as far as the tensors allow it.
#pragma once

#include <hora/export.h>
#include <torch/nn/module.h>
#include <torch/ordered_dict.h>
#include <torch/types.h>

#include <string>

namespace HORA_EXPORT hora {

/// Writes a file under another name, and gives it its own when it is on the disk: a file `path` is
/// always whole, also where several ranks save it (the last one's stays). Tensors may be on any
/// device, of floating-point, integer or boolean type.
void save_safetensors(const std::string& path,
                      const torch::OrderedDict<std::string, torch::Tensor>& tensors);

/// On the CPU, in memory of their own.
torch::OrderedDict<std::string, torch::Tensor> load_safetensors(const std::string& path);

/// Parameters and buffers by their full names ("layer1.0.conv1.weight",
/// "layer1.0.bn1.running_mean"), as PyTorch's state_dict() has them. Not copied.
torch::OrderedDict<std::string, torch::Tensor> weights_of(const torch::nn::Module& module);

/// Copies the weights into the module's parameters and buffers, which keep their type, device and
/// memory order. Every name of either must be in the other, with the same shape; else nothing is
/// copied and the error names the first that is not.
void load_weights(torch::nn::Module& module,
                  const torch::OrderedDict<std::string, torch::Tensor>& weights);

}  // namespace hora
