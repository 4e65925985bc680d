/// What model.cpp builds a Classifier of: a constructor a family, and what families share.
#pragma once

#include <memory>

#include "examples/vision/models/model.h"

namespace vision {

/// With the weights that LibTorch's modules draw by themselves.
std::shared_ptr<Classifier> make_resnet(const Architecture& architecture,
                                        const ModelOptions& options);
std::shared_ptr<Classifier> make_alexnet(const Architecture& architecture,
                                         const ModelOptions& options);
std::shared_ptr<Classifier> make_vgg(const Architecture& architecture, const ModelOptions& options);

/// By options.batch_norm, where it is set.
torch::nn::AnyModule make_batch_norm(const ModelOptions& options, std::int64_t channels);

/// Every convolution anew from a normal distribution with variance 2 / fan_out (He, Zhang, Ren,
/// Sun: Delving deep into rectifiers, 2015, equation 14), in the order of modules().
void draw_convolutions(torch::nn::Module& model);

}  // namespace vision
