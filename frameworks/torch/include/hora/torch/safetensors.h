/// Files of named tensors as Python's package safetensors has them
/// (github.com/huggingface/safetensors); with torchvision's names they are weights for its models.
///
///     hora::save_safetensors("resnet50.safetensors", hora::weights_of(*model));
///     hora::load_weights(*model, hora::load_safetensors("resnet50.safetensors"));
///
/// In Python: `model.load_state_dict(safetensors.torch.load_file("resnet50.safetensors"))`. Nothing
/// in a file is run; lengths and offsets are checked. Errors: Error(invalid_argument) with path or
/// tensor. Thread rule: any thread, as far as the tensors allow it.
#pragma once

#include <hora/export.h>
#include <torch/nn/module.h>
#include <torch/ordered_dict.h>
#include <torch/types.h>

#include <string>

namespace HORA_EXPORT hora {

/// Writes a file of another name and renames it when it is on the disk: `path` is always whole; of
/// several ranks the last one's stays. Tensors on any device, of floating-point, integer or boolean
/// type.
void save_safetensors(const std::string& path,
                      const torch::OrderedDict<std::string, torch::Tensor>& tensors);

/// Returns tensors on the CPU, in memory of their own.
torch::OrderedDict<std::string, torch::Tensor> load_safetensors(const std::string& path);

/// Returns parameters and buffers, not copied, by names as PyTorch's state_dict() has them.
torch::OrderedDict<std::string, torch::Tensor> weights_of(const torch::nn::Module& module);

/// Copies weights into the module's parameters and buffers, which keep type, device and memory
/// order. Names and shapes must match, else nothing is copied and the error names the first.
void load_weights(torch::nn::Module& module,
                  const torch::OrderedDict<std::string, torch::Tensor>& weights);

}  // namespace hora
