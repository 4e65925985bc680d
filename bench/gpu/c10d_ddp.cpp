// DistributedDataParallel without its Python part: what torch/nn/parallel/distributed.py of 2.11
// does around a step.
#include "bench/gpu/c10d_ddp.h"

#include <algorithm>
#include <limits>
#include <string>
#include <torch/csrc/distributed/c10d/HashStore.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroupNCCL.hpp>
#include <torch/csrc/distributed/c10d/reducer.hpp>
#include <unordered_map>
#include <vector>

namespace bench {
namespace {

class C10dNccl final : public DdpReducer {
 public:
  explicit C10dNccl(const torch::nn::Module& module) : parameters_(module.parameters()) {
    const auto store = c10::make_intrusive<c10d::HashStore>();
    backend_ = c10::make_intrusive<c10d::ProcessGroupNCCL>(store, /*rank=*/0, /*size=*/1);
    auto group = c10::make_intrusive<c10d::ProcessGroup>(store, /*rank=*/0, /*size=*/1);
    const auto type = c10d::ProcessGroup::BackendType::NCCL;
    group->setBackend(c10::DeviceType::CUDA, type, c10::intrusive_ptr<c10d::Backend>(backend_));
    group->setDefaultBackend(type);

    const std::vector<bool> dense(parameters_.size(), false);
    // One bucket until rebuild_buckets(), in reverse order of the parameters.
    auto buckets = std::get<0>(c10d::compute_bucket_assignment_by_size(
        parameters_, {std::numeric_limits<std::int64_t>::max()}, dense));
    std::reverse(buckets.begin(), buckets.end());
    std::unordered_map<std::size_t, std::string> names;
    for (const auto& item : module.named_parameters()) names.emplace(names.size(), item.key());
    reducer_ = std::make_unique<c10d::Reducer>(
        parameters_, buckets, std::move(group), dense, c10d::kDefaultBucketBytesCap,
        /*find_unused_parameters=*/false, /*gradient_as_bucket_view=*/true, names,
        c10d::kDefaultFirstBucketBytes, /*skip_all_reduce_unused_params=*/false,
        /*use_python_reducer=*/false, /*bucket_bytes_cap_list=*/std::vector<std::int64_t>{});
  }
  ~C10dNccl() override {
    reducer_.reset();
    try {
      if (backend_) backend_->shutdown();
    } catch (const std::exception&) {
      // Measured already; the communicator ends with the process.
    }
  }
  C10dNccl(const C10dNccl&) = delete;
  C10dNccl& operator=(const C10dNccl&) = delete;

  void begin() override {
    for (auto& parameter : parameters_) parameter.mutable_grad().reset();
    reducer_->prepare_for_forward();
    reducer_->rebuild_buckets();  // once, after the first step
    reducer_->prepare_for_backward({});
  }

 private:
  std::vector<torch::Tensor> parameters_;
  c10::intrusive_ptr<c10d::ProcessGroupNCCL> backend_;
  std::unique_ptr<c10d::Reducer> reducer_;
};

}  // namespace

std::unique_ptr<DdpReducer> make_ddp_reducer(const torch::nn::Module& module) {
  return std::make_unique<C10dNccl>(module);
}

}  // namespace bench
