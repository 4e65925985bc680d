#include "frameworks/torch/optimizer/fused.h"

#include <ATen/Functions.h>
#include <ATen/core/grad_mode.h>
#include <hora/process_set.h>
#include <hora/torch/optim.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <new>
#include <utility>

#include "core/api/internals.h"
#include "core/control_block/tensor_id.h"
#include "frameworks/torch/optim/optim.h"
#include "frameworks/torch/tensor_view.h"

namespace hora::internal {

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

FusedUpdate::FusedUpdate(const Peers& peers, Round& round, OptimizerShards& shards,
                         torch::optim::Optimizer& optimizer, const BucketOptions& averaging,
                         bool in_backward)
    : peers_(peers),
      round_(round),
      optimizer_(optimizer),
      scales_{.pre = 1.0 / averaging.predivide,
              .post = averaging.op == ReduceOp::average ? averaging.predivide / peers.size
                                                        : averaging.predivide},
      members_(ranks_of(peers.context, peers.set)),
      stages_(round.buckets().size(), Stage::filling) {
  move_parameters();
  shards.follow_parameters();
  find_pieces(shards);
  const std::vector<Bucket>& buckets = round.buckets();
  for (std::size_t bucket = 0; bucket < buckets.size(); ++bucket) {
    gradients_.push_back(peer_addresses(peers.context, peers.set, buckets[bucket].name + ".places",
                                        buckets[bucket].memory->data(),
                                        memory_bytes(buckets[bucket].layout())));
  }
  if (!in_backward) return;
  counts_ = Buffer(peers.context, buckets.size() * sizeof(std::uint64_t));
  std::memset(counts_.data(), 0, counts_.size());  // before others learn where it is
  for (std::byte* address : peer_addresses(peers.context, peers.set, buckets[0].name + ".counts",
                                           counts_.data(), counts_.size())) {
    counters_.push_back(reinterpret_cast<std::uint64_t*>(address));
  }
}

FusedUpdate::~FusedUpdate() {
  if (!running_) return;
  // The references are not counted down again. Without the memory for them there is nothing to be
  // saved.
  for (const Block& block : blocks_) {
    static_cast<void>(new (std::nothrow) std::shared_ptr<Buffer>(block.memory));
  }
}

void FusedUpdate::move_parameters() {
  const at::NoGradGuard no_grad;
  const std::vector<Bucket>& buckets = round_.buckets();
  addresses_.resize(round_.parameters().size());
  for (std::size_t bucket = 0; bucket < buckets.size(); ++bucket) {
    const BucketLayout& layout = buckets[bucket].layout();
    Block block{std::make_shared<Buffer>(peers_.context, layout.presence_offset), {}};
    for (const GradientPlace& place : layout.places) {
      const at::Tensor& parameter = round_.parameters()[place.gradient].tensor;
      const at::Tensor moved = at::from_blob(
          block.memory->data() + place.offset, parameter.sizes(), parameter.strides(),
          [owner = block.memory](void*) {}, parameter.options().requires_grad(false));
      moved.copy_(parameter.detach());
      at::Tensor(parameter).set_data(moved);
      addresses_[place.gradient] = parameter.data_ptr();
    }
    block.addresses = peer_addresses(peers_.context, peers_.set, buckets[bucket].name + ".windows",
                                     block.memory->data(), block.memory->size());
    blocks_.push_back(std::move(block));
  }
}

void FusedUpdate::find_pieces(const OptimizerShards& shards) {
  for (const ShardedPiece& piece : shards.own_pieces()) {
    const BucketLayout& layout = round_.buckets()[piece.bucket].layout();
    const auto place = std::find_if(
        layout.places.begin(), layout.places.end(),
        [&](const GradientPlace& candidate) { return candidate.gradient == piece.where.gradient; });
    const std::size_t element = size_of(layout.type);
    Piece own{piece.where.gradient,
              piece.bucket,
              static_cast<std::size_t>(place - layout.places.begin()),
              static_cast<std::size_t>(piece.where.begin) * element,
              static_cast<std::size_t>(piece.where.count) * element,
              {}};
    for (std::size_t rank = 0; rank < members_.size(); ++rank) {
      if (static_cast<int>(rank) == peers_.rank_in_set) continue;
      own.parameters.push_back(blocks_[piece.bucket].addresses[rank] + place->offset + own.begin);
    }
    pieces_[piece.values.unsafeGetTensorImpl()] = std::move(own);
  }
}

bool FusedUpdate::parameters_hold() const {
  for (std::size_t i = 0; i < addresses_.size(); ++i) {
    if (round_.parameters()[i].tensor.data_ptr() != addresses_[i]) return false;
  }
  return true;
}

bool FusedUpdate::can_run() const {
  if (!parameters_hold()) return false;
  for (auto& group : optimizer_.param_groups()) {
    for (const at::Tensor& piece : group.params()) {
      if (!can_update(optimizer_, group.options(), piece)) return false;
    }
  }
  return true;
}

void FusedUpdate::begin() {
  running_ = true;
  stages_.assign(stages_.size(), Stage::filling);
}

// Peers may write to the parameters of a bucket that was given while backward goes on. LibTorch
// then refuses to use a value that was saved before: it compares versions.
void FusedUpdate::proceed() {
  if (!running_) return;
  for (std::size_t bucket = 0; bucket < stages_.size(); ++bucket) {
    Stage& stage = stages_[bucket];
    if (stage == Stage::filling && round_.buckets()[bucket].submitted) {
      for (const GradientPlace& place : round_.buckets()[bucket].layout().places) {
        note_written(round_.parameters()[place.gradient].tensor);
      }
      stage = Stage::given;
    }
    if (stage == Stage::given && round_.ready(bucket)) update(bucket);
    if (stage == Stage::updated && counted_by_all(bucket)) {
      round_.release(bucket);
      stage = Stage::released;
    }
  }
}

void FusedUpdate::update(std::size_t bucket) {
  const at::NoGradGuard no_grad;
  stages_[bucket] = Stage::updated;
  for (auto& group : optimizer_.param_groups()) {
    for (const at::Tensor& tensor : group.params()) {
      const Piece& piece = pieces_.at(tensor.unsafeGetTensorImpl());
      if (piece.bucket != bucket || !round_.present(piece.parameter)) continue;
      begin_update(optimizer_, group.options(), tensor)
          ->run(gradients_of(piece), scales_, piece.parameters);
    }
  }
  count(bucket);
}

std::vector<const std::byte*> FusedUpdate::gradients_of(const Piece& piece) const {
  const BucketLayout& layout = round_.buckets()[piece.bucket].layout();
  std::vector<const std::byte*> found;
  for (std::size_t rank = 0; rank < members_.size(); ++rank) {
    const std::byte* const bucket = gradients_[piece.bucket][rank];
    Location location = kNowhere;
    if (piece.place < layout.apart) {
      location = reinterpret_cast<const Location*>(bucket + locations_offset(layout))[piece.place];
    }
    if (location == kNowhere) {
      found.push_back(bucket + layout.places[piece.place].offset + piece.begin);
    } else {
      location.offset += piece.begin;
      found.push_back(peer_address(peers_.context, members_[rank], location, piece.bytes));
    }
  }
  return found;
}

void FusedUpdate::run() {
  running_ = true;
  for (std::size_t bucket = 0; bucket < stages_.size(); ++bucket) {
    if (stages_[bucket] < Stage::updated) update(bucket);
  }
  std::int32_t done = 0;
  allreduce(peers_.context, view(&done, 1),
            {.name = round_.buckets()[0].name + ".updated",
             .op = ReduceOp::sum,
             .process_set = peers_.set});
  running_ = false;
  for (std::size_t i = 0; i < addresses_.size(); ++i) {
    if (round_.present(i)) note_written(round_.parameters()[i].tensor);
  }
}

void FusedUpdate::end() {
  running_ = false;
  for (std::size_t bucket = 0; bucket < stages_.size(); ++bucket) {
    if (stages_[bucket] < Stage::updated) count(bucket);
    stages_[bucket] = Stage::filling;
  }
}

void FusedUpdate::count(std::size_t bucket) {
  if (counters_.empty()) return;
  auto* const own = counters_[static_cast<std::size_t>(peers_.rank_in_set)];
  std::atomic_ref(own[bucket]).fetch_add(1, std::memory_order_release);
}

bool FusedUpdate::counted_by_all(std::size_t bucket) const {
  const auto own = static_cast<std::size_t>(peers_.rank_in_set);
  const auto times = std::atomic_ref(counters_[own][bucket]).load(std::memory_order_relaxed);
  return std::all_of(counters_.begin(), counters_.end(), [&](std::uint64_t* of_rank) {
    return std::atomic_ref(of_rank[bucket]).load(std::memory_order_acquire) >= times;
  });
}

}  // namespace hora::internal
