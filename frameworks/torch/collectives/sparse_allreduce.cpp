#include <ATen/core/grad_mode.h>
#include <hora/torch/sparse.h>

#include <memory>
#include <sstream>
#include <utility>
#include <vector>

#include "core/base/text.h"
#include "frameworks/torch/collectives/pending_tensors.h"
#include "frameworks/torch/tensor_view.h"

namespace hora {
using namespace internal;
namespace {

void check_sparse(const torch::Tensor& tensor, const AllreduceOptions& options) {
  if (!tensor.defined()) refuse_tensor(options.name, "is undefined; expected a sparse one");
  if (tensor.layout() != torch::kSparse) {
    refuse_tensor(options.name, "is not sparse (COO); hora::allreduce takes dense ones");
  }
  if (options.op != ReduceOp::sum && options.op != ReduceOp::average) {
    refuse_tensor(options.name, "a reduction by " + std::string(name_of(options.op)) +
                                    " of sparse tensors is not defined; expected sum or average");
  }
  const bool scaled =
      options.op == ReduceOp::average || options.prescale != 1.0 || options.postscale != 1.0;
  if (scaled && !tensor.is_floating_point()) {
    refuse_tensor(options.name, std::string("an average or a scale of ") +
                                    torch::toString(tensor.scalar_type()) +
                                    " is not defined; ask for ReduceOp::sum");
  }
}

/// Row 0 holds the sizes, so that they can be compared; then one row an element.
torch::Tensor sizes_and_indices(const torch::Tensor& tensor) {
  const auto sizes = tensor.sizes().slice(0, static_cast<std::size_t>(tensor.sparse_dim()));
  const auto first = torch::tensor(sizes, torch::kLong).to(tensor.device()).unsqueeze(0);
  return torch::cat({first, tensor.indices().t()});
}

std::string sizes_text(const torch::Tensor& row) {
  const torch::Tensor host = row.cpu().contiguous();
  std::ostringstream text;
  text << torch::IntArrayRef(host.data_ptr<std::int64_t>(), static_cast<std::size_t>(host.numel()));
  return text.str();
}

/// Over the allgathers of indices and of values.
class PendingSparse final : public PendingTensors {
 public:
  PendingSparse(std::unique_ptr<PendingTensors> gather, const AllreduceOptions& options,
                std::vector<int> ranks, torch::Tensor tensor)
      : options_(options),
        ranks_(std::move(ranks)),
        tensor_(std::move(tensor)),
        gather_(std::move(gather)) {}

  bool ready() const override { return gather_->ready(); }
  bool wait_for(std::chrono::nanoseconds timeout) const override {
    return gather_->wait_for(timeout);
  }

  TensorResults wait() override {
    const torch::NoGradGuard no_grad;
    const TensorResults gathered = gather_->wait();
    const torch::Tensor sum =
        torch::sparse_coo_tensor(indices_in(gathered[0]), gathered[1].tensor, tensor_.sizes())
            .coalesce();
    const double scale =
        options_.postscale /
        (options_.op == ReduceOp::average ? static_cast<double>(ranks_.size()) : 1.0);
    if (scale != 1.0) sum.values().mul_(scale);
    return {{sum, {}}};
  }

 private:
  torch::Tensor indices_in(const AlltoallResult& gathered) const {
    std::vector<torch::Tensor> parts;
    std::int64_t first = 0;
    for (std::size_t i = 0; i < ranks_.size(); ++i) {
      const std::int64_t rows = gathered.received_splits[i];
      check_sizes(gathered.tensor[0], gathered.tensor[first], ranks_[i]);
      parts.push_back(gathered.tensor.narrow(0, first + 1, rows - 1));
      first += rows;
    }
    return torch::cat(parts).t();
  }

  void check_sizes(const torch::Tensor& of_first, const torch::Tensor& other, int rank) const {
    if (torch::equal(of_first, other)) return;
    throw Error(ErrorCode::mismatch,
                tensor_text(options_.name) + ": ranks disagree about its sizes: rank " +
                    std::to_string(ranks_.front()) + " has " + sizes_text(of_first) + ", rank " +
                    std::to_string(rank) + " has " + sizes_text(other) +
                    " in the dimensions that have indices",
                rank, options_.name);
  }

  AllreduceOptions options_;
  std::vector<int> ranks_;
  torch::Tensor tensor_;
  std::unique_ptr<PendingTensors> gather_;
};

}  // namespace

TensorHandle sparse_allreduce_async(const Context& context, const torch::Tensor& tensor,
                                    const AllreduceOptions& options) {
  check_sparse(tensor, options);
  const torch::NoGradGuard no_grad;
  const torch::Tensor coalesced = tensor.detach().coalesce();
  torch::Tensor values = coalesced.values();
  if (options.prescale != 1.0) values = values * options.prescale;
  const Tensors sent{sizes_and_indices(coalesced), values};
  auto gather =
      start_collective(context, {.tensors = sent, .is_group = true},
                       AllgatherOptions{.name = options.name, .process_set = options.process_set});
  return TensorAccess::handle<TensorHandle>(std::make_unique<PendingSparse>(
      std::move(gather), options, ranks_of(context, options.process_set), coalesced));
}

torch::Tensor sparse_allreduce(const Context& context, const torch::Tensor& tensor,
                               const AllreduceOptions& options) {
  return sparse_allreduce_async(context, tensor, options).wait();
}

}  // namespace hora
