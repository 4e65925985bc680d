#include "frameworks/torch/optimizer/fused_update.h"

#include <ATen/Functions.h>
#include <ATen/core/grad_mode.h>
#include <hora/torch/optim.h>

#include <algorithm>
#include <new>
#include <utility>

#include "core/api/internals.h"
#include "frameworks/torch/optim/optim.h"
#include "frameworks/torch/tensor_view.h"

namespace hora::internal {
namespace {

std::size_t bucket_count(const GradientAverager& averager) {
  return averager.buckets().size();
}

}  // namespace

bool is_of_hora_optim(const torch::optim::Optimizer& optimizer) {
  return dynamic_cast<const optim::SGD*>(&optimizer) != nullptr ||
         dynamic_cast<const optim::Adam*>(&optimizer) != nullptr ||
         dynamic_cast<const optim::AdamW*>(&optimizer) != nullptr;
}

bool can_fuse_update(const Peers& peers, const torch::optim::Optimizer& optimizer,
                     const std::vector<Parameter>& parameters) {
  return is_of_hora_optim(optimizer) && !parameters.empty() &&
         share_memory(peers.context, peers.set) &&
         std::all_of(parameters.begin(), parameters.end(), [](const Parameter& parameter) {
           // Other tensors in that memory would not move with it.
           return takes_one_pass(parameter.tensor) && parameter.tensor.storage().use_count() == 1;
         });
}

ParameterWindows::ParameterWindows(const Peers& peers, const GradientAverager& averager)
    : averager_(averager), places_(averager.parameters().size()) {
  const at::NoGradGuard no_grad;
  for (std::size_t b = 0; b < bucket_count(averager); ++b) {
    const BucketLayout& layout = averager.buckets().layout(b);
    Block block{std::make_shared<Buffer>(peers.context, layout.presence_offset), {}};
    for (const GradientPlace& place : layout.places) {
      const at::Tensor& parameter = averager.parameters()[place.gradient].tensor;
      std::byte* const data = block.memory->data() + place.offset;
      const at::Tensor moved = at::from_blob(
          data, parameter.sizes(), parameter.strides(), [owner = block.memory](void*) {},
          parameter.options().requires_grad(false));
      moved.copy_(parameter.detach());
      at::Tensor(parameter).set_data(moved);
      places_[place.gradient] = parameter.data_ptr();
    }
    block.addresses =
        peer_addresses(peers.context, peers.set, averager.buckets().name(b) + ".windows",
                       block.memory->data(), block.memory->size());
    blocks_.push_back(std::move(block));
  }
}

bool ParameterWindows::hold() const {
  for (std::size_t i = 0; i < places_.size(); ++i) {
    if (averager_.parameters()[i].tensor.data_ptr() != places_[i]) return false;
  }
  return true;
}

void ParameterWindows::give_up() const noexcept {
  // The references are not counted down again. Without the memory for them there is nothing to be
  // saved.
  for (const Block& block : blocks_) {
    static_cast<void>(new (std::nothrow) std::shared_ptr<Buffer>(block.memory));
  }
}

FusedUpdate::FusedUpdate(const Peers& peers, const GradientAverager& averager,
                         const OptimizerShards& shards, torch::optim::Optimizer& optimizer,
                         const AveragingOptions& averaging, const ParameterWindows& windows)
    : peers_(peers),
      name_(averager.buckets().name(0) + ".updated"),
      averager_(averager),
      optimizer_(optimizer),
      scales_{.pre = 1.0 / averaging.predivide,
              .post = averaging.op == ReduceOp::average ? averaging.predivide / peers.size
                                                        : averaging.predivide},
      windows_(windows),
      gradients_(peers, averager.buckets()),
      updated_(bucket_count(averager), false) {
  for (const ShardedPiece& piece : shards.own_pieces()) {
    const BucketLayout& layout = averager.buckets().layout(piece.bucket);
    const auto place = std::find_if(
        layout.places.begin(), layout.places.end(),
        [&](const GradientPlace& candidate) { return candidate.gradient == piece.where.gradient; });
    const std::size_t element = size_of(layout.type);
    const std::size_t begin = static_cast<std::size_t>(piece.where.begin) * element;
    Piece own{piece.where.gradient,
              {piece.bucket, static_cast<std::size_t>(place - layout.places.begin()), begin,
               static_cast<std::size_t>(piece.where.count) * element},
              {}};
    for (int rank = 0; rank < peers.size; ++rank) {
      if (rank == peers.rank_in_set) continue;
      own.parameters.push_back(windows.addresses(piece.bucket)[static_cast<std::size_t>(rank)] +
                               place->offset + begin);
    }
    pieces_[piece.values.unsafeGetTensorImpl()] = std::move(own);
  }
}

FusedUpdate::~FusedUpdate() {
  if (running_) windows_.give_up();
}

bool FusedUpdate::can_run() const {
  if (!windows_.hold()) return false;
  for (auto& group : optimizer_.param_groups()) {
    for (const at::Tensor& piece : group.params()) {
      if (!can_update(optimizer_, group.options(), piece)) return false;
    }
  }
  return true;
}

void FusedUpdate::run(std::size_t bucket) {
  const at::NoGradGuard no_grad;
  updated_[bucket] = true;
  for (auto& group : optimizer_.param_groups()) {
    for (const at::Tensor& tensor : group.params()) {
      const Piece& piece = pieces_.at(tensor.unsafeGetTensorImpl());
      if (piece.gradient.bucket != bucket || !averager_.present(piece.parameter)) continue;
      begin_update(optimizer_, group.options(), tensor)
          ->run(gradients_.find(piece.gradient), scales_, piece.parameters);
    }
  }
}

void FusedUpdate::run() {
  running_ = true;
  for (std::size_t bucket = 0; bucket < updated_.size(); ++bucket) {
    if (!updated_[bucket]) run(bucket);
  }
  std::int32_t done = 0;
  allreduce(peers_.context, view(&done, 1),
            {.name = name_, .op = ReduceOp::sum, .process_set = peers_.set});
  end();
  for (std::size_t i = 0; i < averager_.parameters().size(); ++i) {
    if (averager_.present(i)) note_written(averager_.parameters()[i].tensor);
  }
}

void FusedUpdate::end() {
  running_ = false;
  updated_.assign(updated_.size(), false);
}

}  // namespace hora::internal
