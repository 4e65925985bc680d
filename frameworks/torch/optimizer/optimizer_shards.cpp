#include "frameworks/torch/optimizer/optimizer_shards.h"

#include <ATen/Functions.h>
#include <ATen/core/grad_mode.h>

#include <cstdint>
#include <unordered_map>
#include <utility>

#include "frameworks/torch/tensor_view.h"

namespace hora {
namespace {

/// In memory order, one dimension.
at::Tensor flat(const Parameter& parameter) {
  const at::Tensor tensor = parameter.tensor.detach();
  if (!tensor.is_non_overlapping_and_dense()) {
    throw Error(ErrorCode::invalid_argument,
                "DistributedOptimizer: parameter '" + parameter.name +
                    "' is not dense in memory: shard_state cannot cut it; make it contiguous",
                -1, parameter.name);
  }
  return in_memory_order(tensor);
}

}  // namespace

OptimizerShards::OptimizerShards(const Peers& peers, const GradientAverager& averager,
                                 torch::optim::Optimizer& optimizer)
    : peers_(peers), averager_(averager) {
  if (!optimizer.state().empty()) {
    throw Error(ErrorCode::invalid_use,
                "DistributedOptimizer: shard_state was asked for, but the wrapped optimizer has "
                "state already; construct DistributedOptimizer before its first step",
                peers.context.rank());
  }
  const at::NoGradGuard no_grad;
  const auto& parameters = averager.parameters();
  std::vector<std::int64_t> counts;
  for (const Parameter& parameter : parameters) counts.push_back(parameter.tensor.numel());
  for (std::size_t b = 0; b < averager.buckets().size(); ++b) {
    const BucketLayout& layout = averager.buckets().layout(b);
    Bucket bucket;
    for (const ShardPiece& piece : pieces_of_slice(layout, counts, peers.place, peers.size)) {
      const at::Tensor values =
          flat(parameters[piece.gradient]).narrow(0, piece.begin, piece.count);
      bucket.pieces.push_back({piece, values});
    }
    bucket.slice = at::zeros({slice_elements(layout, peers.size)},
                             parameters[layout.places.front().gradient].tensor.options());
    buckets_.push_back(std::move(bucket));
  }
  replace_parameters(optimizer);
}

void OptimizerShards::replace_parameters(torch::optim::Optimizer& optimizer) const {
  std::unordered_map<const void*, std::vector<at::Tensor>> pieces;
  for (const Bucket& bucket : buckets_) {
    for (const Piece& piece : bucket.pieces) {
      const Parameter& parameter = averager_.parameters()[piece.where.gradient];
      pieces[parameter.tensor.unsafeGetTensorImpl()].push_back(piece.values);
    }
  }
  for (auto& group : optimizer.param_groups()) {
    std::vector<at::Tensor> mine;
    for (const at::Tensor& parameter : group.params()) {
      const auto found = pieces.find(parameter.unsafeGetTensorImpl());
      if (found == pieces.end()) continue;
      mine.insert(mine.end(), found->second.begin(), found->second.end());
    }
    group.params() = std::move(mine);
  }
}

void OptimizerShards::take_gradients() {
  for (std::size_t b = 0; b < buckets_.size(); ++b) {
    const at::Tensor slice = averager_.buckets().slice(b);
    for (const Piece& piece : buckets_[b].pieces) {
      at::Tensor& gradient = piece.values.mutable_grad();
      if (averager_.present(piece.where.gradient)) {
        gradient = slice.narrow(0, piece.where.offset, piece.where.count);
      } else {
        gradient.reset();
      }
    }
  }
}

std::vector<at::Tensor> OptimizerShards::gradients() const {
  std::vector<at::Tensor> gradients;
  for (const Bucket& bucket : buckets_) {
    for (const Piece& piece : bucket.pieces) {
      if (piece.values.grad().defined()) gradients.push_back(piece.values.grad());
    }
  }
  return gradients;
}

void OptimizerShards::begin_gather() {
  end_gather();
  if (peers_.size == 1) return;
  const at::NoGradGuard no_grad;
  for (std::size_t b = 0; b < buckets_.size(); ++b) {
    Bucket& bucket = buckets_[b];
    for (const Piece& piece : bucket.pieces) {
      bucket.slice.narrow(0, piece.where.offset, piece.where.count).copy_(piece.values);
    }
    bucket.gather.emplace(allgather_async(
        peers_.context, bucket.slice,
        {.name = averager_.buckets().name(b) + ".parameters", .process_set = peers_.set}));
  }
}

void OptimizerShards::end_gather() {
  const at::NoGradGuard no_grad;
  for (std::size_t b = 0; b < buckets_.size(); ++b) {
    if (!buckets_[b].gather) continue;
    const at::Tensor all = buckets_[b].gather->wait();
    buckets_[b].gather.reset();
    spread(b, all);
  }
}

void OptimizerShards::spread(std::size_t bucket, const at::Tensor& all) const {
  const BucketLayout& layout = averager_.buckets().layout(bucket);
  for (const GradientPlace& place : layout.places) {
    const Parameter& parameter = averager_.parameters()[place.gradient];
    const auto start = static_cast<std::int64_t>(place.offset / size_of(layout.type));
    const at::Tensor target = flat(parameter);
    target.copy_(all.narrow(0, start, target.numel()));
  }
}

}  // namespace hora
