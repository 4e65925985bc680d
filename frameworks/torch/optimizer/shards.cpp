#include "frameworks/torch/optimizer/shards.h"

#include <ATen/Functions.h>
#include <ATen/core/grad_mode.h>
#include <hora/torch/optim.h>
#include <torch/optim/adagrad.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <map>
#include <utility>

#include "core/api/internals.h"
#include "frameworks/torch/optim/optim.h"
#include "frameworks/torch/tensor_view.h"

namespace hora::internal {
namespace {

/// In memory order, one dimension.
at::Tensor flat(const Parameter& parameter) {
  return in_memory_order(parameter.tensor.detach());
}

at::Tensor values_of(const Parameter& parameter, const ShardPiece& piece) {
  return flat(parameter).narrow(0, piece.begin, piece.count);
}

/// Refuses two parameters in one memory: each rank would overwrite the others' pieces of one.
void refuse_shared_memory(const std::vector<Parameter>& parameters) {
  std::map<std::uintptr_t, const Parameter*> ends;
  for (const Parameter& parameter : parameters) {
    if (parameter.tensor.numel() == 0) continue;
    const auto begin = reinterpret_cast<std::uintptr_t>(parameter.tensor.data_ptr());
    const auto end = begin + parameter.tensor.nbytes();
    const auto next = ends.upper_bound(begin);
    if (next != ends.end() &&
        reinterpret_cast<std::uintptr_t>(next->second->tensor.data_ptr()) < end) {
      throw Error(ErrorCode::invalid_argument,
                  "DistributedOptimizer: parameters '" + next->second->name + "' and '" +
                      parameter.name +
                      "' share memory: sharding cannot cut it; make them one parameter, or "
                      "clone one of them",
                  -1, parameter.name);
    }
    ends.emplace(end, &parameter);
  }
}

using torch::optim::AdagradParamState;

/// False where the optimizer has stepped, and where it keeps state that hora does not know: only
/// Adagrad has any before its first step.
bool can_cut_state(const torch::optim::Optimizer& optimizer) {
  return std::all_of(optimizer.state().begin(), optimizer.state().end(), [](const auto& entry) {
    const auto* state = dynamic_cast<const AdagradParamState*>(entry.second.get());
    return state != nullptr && state->step() == 0;
  });
}

/// The state of `parameter`, where it has any, becomes that of its pieces.
void cut_state(torch::optim::Optimizer& optimizer, const at::Tensor& parameter,
               const std::vector<const ShardedPiece*>& pieces) {
  OptimizerStates& states = optimizer.state();
  const auto found = states.find(key_of(parameter));
  if (found == states.end()) return;
  const auto whole = std::move(found->second);
  states.erase(found);
  // In the parameter's memory order, which a loaded one need not have.
  const at::Tensor sum =
      in_memory_order(at::empty_like(parameter.detach())
                          .copy_(static_cast<const AdagradParamState&>(*whole).sum()));
  for (const ShardedPiece* piece : pieces) {
    auto state = std::make_unique<AdagradParamState>();
    state->sum(sum.narrow(0, piece->where.begin, piece->where.count).clone());
    states[key_of(piece->values)] = std::move(state);
  }
}

// Checks all of them, also those of which this rank has no piece: ranks refuse alike.
void check_can_cut(const std::vector<Parameter>& parameters) {
  for (const Parameter& parameter : parameters) {
    if (parameter.tensor.is_non_overlapping_and_dense()) continue;
    throw Error(ErrorCode::invalid_argument,
                "DistributedOptimizer: parameter '" + parameter.name +
                    "' is not dense in memory: sharding cannot cut it; make it contiguous",
                -1, parameter.name);
  }
  refuse_shared_memory(parameters);
}

}  // namespace

OptimizerShards::OptimizerShards(const Peers& peers, const Round& round,
                                 torch::optim::Optimizer& optimizer)
    : peers_(peers),
      round_(round),
      optimizer_(optimizer),
      forms_(round.parameters().begin(), round.parameters().end()) {
  const auto& parameters = round.parameters();
  check_can_cut(parameters);
  if (!can_cut_state(optimizer)) {
    throw Error(ErrorCode::invalid_use,
                "DistributedOptimizer: sharding was asked for, but the wrapped optimizer has "
                "state already, which is not that of Adagrad's constructor; construct "
                "DistributedOptimizer before its first step",
                peers.context.rank());
  }
  const at::NoGradGuard no_grad;
  std::vector<std::int64_t> counts;
  for (const Parameter& parameter : parameters) counts.push_back(parameter.tensor.numel());
  for (std::size_t bucket = 0; bucket < round.buckets().size(); ++bucket) {
    const BucketLayout& layout = round.buckets()[bucket].layout();
    for (const ShardPiece& piece : pieces_of_slice(layout, counts, peers.rank_in_set, peers.size)) {
      pieces_.push_back({bucket, piece, values_of(parameters[piece.gradient], piece)});
    }
    const auto& options = parameters[layout.places.front().gradient].tensor.options();
    slices_.push_back({at::zeros({slice_elements(layout, peers.size)}, options), {}});
  }
  replace_parameters();
}

OptimizerShards::~OptimizerShards() {
  // Another tensor may get a piece's address, which is the key of its state.
  for (const ShardedPiece& piece : pieces_) optimizer_.state().erase(key_of(piece.values));
  for (std::size_t group = 0; group < whole_.size(); ++group) {
    optimizer_.param_groups()[group].params() = std::move(whole_[group]);
  }
  for (const Parameter& parameter : round_.parameters()) drop_placeholder(parameter.tensor);
}

void OptimizerShards::replace_parameters() {
  std::unordered_map<const void*, std::vector<const ShardedPiece*>> pieces;
  for (const ShardedPiece& piece : pieces_) {
    const Parameter& parameter = round_.parameters()[piece.where.gradient];
    pieces[parameter.tensor.unsafeGetTensorImpl()].push_back(&piece);
  }
  for (const Parameter& parameter : round_.parameters()) {
    cut_state(optimizer_, parameter.tensor, pieces[parameter.tensor.unsafeGetTensorImpl()]);
  }
  for (auto& group : optimizer_.param_groups()) {
    std::vector<at::Tensor> own;
    for (const at::Tensor& parameter : group.params()) {
      for (const ShardedPiece* piece : pieces.at(parameter.unsafeGetTensorImpl())) {
        own.push_back(piece->values);
      }
    }
    whole_.push_back(std::exchange(group.params(), std::move(own)));
  }
}

OptimizerShards::Memory OptimizerShards::memory_of(const at::Tensor& parameter) {
  return {parameter.storage(), parameter.data_ptr(),
          parameter.is_inference() ? 0 : parameter._version()};
}

void OptimizerShards::follow_parameters() {
  const auto& parameters = round_.parameters();
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    forms_[i].check(parameters[i], /*with_order=*/true);
  }
  check_can_cut(parameters);
  const at::NoGradGuard no_grad;
  for (const ShardedPiece& piece : pieces_) {
    const Parameter& parameter = parameters[piece.where.gradient];
    const auto* const memory = static_cast<const std::byte*>(parameter.tensor.data_ptr());
    const auto begin =
        static_cast<std::size_t>(piece.where.begin * parameter.tensor.element_size());
    if (piece.values.data_ptr() == memory + begin) continue;
    piece.values.set_data(values_of(parameter, piece.where));
  }
}

void OptimizerShards::take_gradients() {
  for (const ShardedPiece& piece : pieces_) {
    at::Tensor& gradient = piece.values.mutable_grad();
    gradient.reset();
    if (round_.updates() || !round_.present(piece.where.gradient)) continue;
    const at::Tensor& slice = round_.buckets()[piece.bucket].slice;
    gradient = slice.narrow(0, piece.where.offset, piece.where.count);
  }
}

std::vector<OptimizerPiece> OptimizerShards::pieces() const {
  std::vector<OptimizerPiece> pieces;
  for (const ShardedPiece& piece : pieces_) {
    const Parameter& parameter = round_.parameters()[piece.where.gradient];
    pieces.push_back({parameter.name, parameter.tensor, piece.values, piece.where.begin});
  }
  return pieces;
}

void OptimizerShards::begin_gather() {
  end_gather();
  if (peers_.size == 1) return;
  memories_.clear();
  for (const Parameter& parameter : round_.parameters()) {
    memories_.push_back(memory_of(parameter.tensor));
  }
  const at::NoGradGuard no_grad;
  for (const ShardedPiece& piece : pieces_) {
    slices_[piece.bucket]
        .values.narrow(0, piece.where.offset, piece.where.count)
        .copy_(piece.values);
  }
  for (std::size_t bucket = 0; bucket < slices_.size(); ++bucket) {
    slices_[bucket].gather = allgather_async(
        peers_.context, slices_[bucket].values,
        {.name = round_.buckets()[bucket].name + ".parameters", .process_set = peers_.set});
  }
}

void OptimizerShards::end_gather() {
  const at::NoGradGuard no_grad;
  const Parameter* written = nullptr;
  for (std::size_t bucket = 0; bucket < slices_.size(); ++bucket) {
    if (!slices_[bucket].gather.valid()) continue;
    const at::Tensor all = slices_[bucket].gather.wait();
    if (const Parameter* in_bucket = copy_to_parameters(bucket, all)) written = in_bucket;
  }
  if (!written) return;
  throw Error(ErrorCode::invalid_use,
              "Parameter '" + written->name +
                  "' was written after step(), while its shares were being gathered "
                  "(overlap_parameter_gather); call complete_parameters() before that",
              peers_.context.rank(), written->name);
}

const Parameter* OptimizerShards::copy_to_parameters(std::size_t bucket,
                                                     const at::Tensor& all) const {
  const Parameter* written = nullptr;
  const BucketLayout& layout = round_.buckets()[bucket].layout();
  for (const GradientPlace& place : layout.places) {
    const Parameter& parameter = round_.parameters()[place.gradient];
    const Memory& then = memories_[place.gradient];
    const Memory now = memory_of(parameter.tensor);
    const bool is_other = now.address != then.address || !now.storage.is_alias_of(then.storage);
    if (is_other) continue;  // the program's values are newer
    if (now.version != then.version) {
      written = &parameter;
      continue;
    }
    const auto start = static_cast<std::int64_t>(place.offset / size_of(layout.type));
    const at::Tensor target = flat(parameter);
    target.copy_(all.narrow(0, start, target.numel()));
  }
  return written;
}

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
  const std::vector<Bucket>& buckets = round.buckets();
  addresses_.resize(round.parameters().size());
  const auto addresses_of = [&](const Bucket& bucket, const char* what, const std::byte* data,
                                std::size_t bytes) {
    return peer_addresses(peers.context, peers.set, bucket.name + what, data, bytes);
  };
  std::vector<std::vector<std::byte*>> parameters;  // by bucket and rank in the set
  for (const Bucket& bucket : buckets) {
    move_parameters(bucket);
    const Buffer& block = *blocks_.back();
    parameters.push_back(addresses_of(bucket, ".windows", block.data(), block.size()));
    gradients_.push_back(
        addresses_of(bucket, ".places", bucket.memory->data(), memory_bytes(bucket.layout())));
  }
  shards.follow_parameters();
  for (const ShardedPiece& piece : shards.own_pieces()) {
    Piece own{piece, static_cast<std::size_t>(piece.where.begin * piece.values.element_size()), {}};
    const BucketLayout& layout = buckets[piece.bucket].layout();
    for (std::byte* const address : parameters[piece.bucket]) {
      own.parameters.push_back(address + layout.places[piece.where.place].offset + own.begin);
    }
    own.parameters.erase(own.parameters.begin() + peers.rank_in_set);
    pieces_[piece.values.unsafeGetTensorImpl()] = std::move(own);
  }
  if (!in_backward) return;
  counts_ = Buffer(peers.context, buckets.size() * sizeof(std::uint64_t));
  std::memset(counts_.data(), 0, counts_.size());  // before others learn where it is
  for (std::byte* address :
       addresses_of(buckets.front(), ".counts", counts_.data(), counts_.size())) {
    counters_.push_back(reinterpret_cast<std::uint64_t*>(address));
  }
}

FusedUpdate::~FusedUpdate() {
  if (!running_) return;
  for (const auto& block : blocks_) never_free(block);
}

void FusedUpdate::move_parameters(const Bucket& bucket) {
  const at::NoGradGuard no_grad;
  const BucketLayout& layout = bucket.layout();
  const auto block = std::make_shared<Buffer>(peers_.context, layout.presence_offset);
  for (const GradientPlace& place : layout.places) {
    const at::Tensor& parameter = round_.parameters()[place.gradient].tensor;
    const at::Tensor moved = at::from_blob(
        block->data() + place.offset, parameter.sizes(), parameter.strides(), [block](void*) {},
        parameter.options().requires_grad(false));
    moved.copy_(parameter.detach());
    at::Tensor(parameter).set_data(moved);
    addresses_[place.gradient] = parameter.data_ptr();
  }
  blocks_.push_back(block);
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
      if (piece.own.bucket != bucket || !round_.present(piece.own.where.gradient)) continue;
      begin_update(optimizer_, group.options(), tensor)
          ->run(gradients_of(piece), scales_, piece.parameters);
    }
  }
  count(bucket);
}

std::vector<const std::byte*> FusedUpdate::gradients_of(const Piece& piece) const {
  const BucketLayout& layout = round_.buckets()[piece.own.bucket].layout();
  const std::size_t place = piece.own.where.place;
  std::vector<const std::byte*> found;
  for (std::size_t rank = 0; rank < members_.size(); ++rank) {
    const std::byte* const bucket = gradients_[piece.own.bucket][rank];
    Location location = kNowhere;
    if (place < layout.apart) {
      location = reinterpret_cast<const Location*>(bucket + locations_offset(layout))[place];
    }
    if (location == kNowhere) {
      found.push_back(bucket + layout.places[place].offset + piece.begin);
    } else {
      location.offset += piece.begin;
      found.push_back(
          peer_address(peers_.context, members_[rank], location, piece.own.values.nbytes()));
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
