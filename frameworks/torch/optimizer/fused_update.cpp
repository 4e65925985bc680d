#include "frameworks/torch/optimizer/fused_update.h"

#include <ATen/Functions.h>
#include <ATen/Parallel.h>
#include <ATen/core/grad_mode.h>
#include <hora/torch/optim.h>

#include <algorithm>
#include <cstring>
#include <new>
#include <utility>

#include "core/api/peer_memory.h"
#include "frameworks/torch/optim/parameter_update.h"
#include "frameworks/torch/tensor_view.h"
#include "ops/local/kernels.h"

namespace hora::internal {
namespace {

/// Of averages on their way to the update: they stay in the first-level cache.
constexpr std::size_t kBlockBytes = std::size_t{8} << 10;
/// Elements below which a thread more does not pay: LibTorch's own for elementwise operations.
constexpr std::int64_t kGrain = 32768;

std::size_t bucket_count(const GradientAverager& averager) {
  return averager.buckets().size();
}

}  // namespace

bool can_fuse_update(const Peers& peers, const torch::optim::Optimizer& optimizer,
                     const std::vector<Parameter>& parameters) {
  const bool is_ours = dynamic_cast<const optim::SGD*>(&optimizer) != nullptr ||
                       dynamic_cast<const optim::Adam*>(&optimizer) != nullptr ||
                       dynamic_cast<const optim::AdamW*>(&optimizer) != nullptr;
  return is_ours && !parameters.empty() && share_memory(peers.context, peers.set) &&
         std::all_of(parameters.begin(), parameters.end(), [](const Parameter& parameter) {
           // What else lies in that memory would not move with it.
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
      op_(averaging.op),
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
      run(begin_update(optimizer_, group.options(), tensor).value(), piece);
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

void FusedUpdate::run(const ParameterUpdate& update, const Piece& piece) const {
  const std::size_t element = size_of(update.type);
  const std::vector<const std::byte*> gradients = gradients_.find(piece.gradient);
  const auto run_range = [&](std::size_t begin, std::size_t end) {
    alignas(64) std::array<std::byte, kBlockBytes> average;
    std::byte* const averages[] = {average.data()};
    std::vector<const std::byte*> inputs(gradients.size());
    std::vector<std::byte*> outputs(piece.parameters.size());
    const std::size_t block = kBlockBytes / element;
    for (std::size_t i = begin; i < end; i += block) {
      const std::size_t count = std::min(block, end - i);
      const std::size_t offset = i * element;
      for (std::size_t r = 0; r < inputs.size(); ++r) inputs[r] = gradients[r] + offset;
      for (std::size_t r = 0; r < outputs.size(); ++r) outputs[r] = piece.parameters[r] + offset;
      reduce(update.type, op_, inputs, averages, count, scales_);
      update.run(average.data(), i, i + count);
      copy_to_all(update.memory.parameter + offset, outputs, count * element);
    }
  };
  at::parallel_for(0, static_cast<std::int64_t>(update.count), kGrain,
                   [&](std::int64_t begin, std::int64_t end) {
                     run_range(static_cast<std::size_t>(begin), static_cast<std::size_t>(end));
                   });
}

}  // namespace hora::internal
