#include <hora/torch/collectives.h>
#include <hora/torch/module.h>

#include <unordered_set>
#include <utility>
#include <vector>

#include "frameworks/torch/tensor_view.h"

namespace hora {
using namespace internal;
namespace {

// As bytes, for types that hora cannot reduce but can copy, such as complex numbers.
torch::Tensor as_broadcastable(const torch::Tensor& tensor) {
  if (to_data_type(tensor.scalar_type())) return tensor;
  return tensor.contiguous().flatten().view(torch::kByte);
}

class ModuleBroadcast {
 public:
  ModuleBroadcast(const Context& context, int root, ProcessSet set)
      : context_(context), root_(root), set_(set) {}

  void add(const torch::OrderedDict<std::string, torch::Tensor>& tensors) {
    const torch::NoGradGuard no_grad;
    for (const auto& item : tensors) {
      const torch::Tensor& tensor = item.value();
      // A weight tied under two names travels once.
      if (!tensor.defined() || !seen_.insert(tensor.unsafeGetTensorImpl()).second) continue;
      torch::Tensor travelling = as_broadcastable(tensor.detach());
      handles_.push_back(broadcast_async_(
          context_, travelling,
          {.name = "hora.broadcast." + item.key(), .root = root_, .process_set = set_}));
      sources_.push_back({tensor, std::move(travelling)});
    }
  }

  void wait() {
    const torch::NoGradGuard no_grad;
    for (std::size_t i = 0; i < handles_.size(); ++i) {
      handles_[i].wait();
      const auto& [target, travelling] = sources_[i];
      if (travelling.data_ptr() == target.data_ptr()) continue;
      target.detach().copy_(travelling.view(target.scalar_type()).view(target.sizes()));
    }
  }

 private:
  const Context& context_;
  int root_;
  ProcessSet set_;
  std::unordered_set<const void*> seen_;
  std::vector<std::pair<torch::Tensor, torch::Tensor>> sources_;
  std::vector<TensorHandle> handles_;  // after sources_: handles are destroyed first
};

}  // namespace

void broadcast_parameters(const Context& context, torch::nn::Module& module, int root,
                          ProcessSet process_set) {
  ModuleBroadcast broadcast(context, root, process_set);
  broadcast.add(module.named_parameters());
  broadcast.add(module.named_buffers());
  broadcast.wait();
}

void broadcast_buffers(const Context& context, torch::nn::Module& module, int root,
                       ProcessSet process_set) {
  ModuleBroadcast broadcast(context, root, process_set);
  broadcast.add(module.named_buffers());
  broadcast.wait();
}

}  // namespace hora
