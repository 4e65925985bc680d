#include "frameworks/torch/optimizer/shards.h"

#include <ATen/Functions.h>
#include <ATen/core/grad_mode.h>
#include <torch/optim/adagrad.h>

#include <algorithm>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <unordered_map>
#include <utility>

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
/// In the parameter's memory order, which a loaded one need not have.
at::Tensor in_order_of(const at::Tensor& parameter, const at::Tensor& state) {
  return in_memory_order(at::empty_like(parameter.detach()).copy_(state));
}

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
  const at::Tensor sum =
      in_order_of(parameter, static_cast<const AdagradParamState&>(*whole).sum());
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
    : peers_(peers), round_(round), optimizer_(optimizer), forms_(forms_of(round.parameters())) {
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
    slices_.push_back({at::zeros({slice_elements(layout, peers.size)}, options), std::nullopt});
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
  for (std::size_t i = 0; i < parameters.size(); ++i) forms_[i].check_with_order(parameters[i]);
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
    if (!round_.present(piece.where.gradient)) continue;
    gradient = round_.buckets()[piece.bucket].memory->slice.narrow(0, piece.where.offset,
                                                                   piece.where.count);
  }
}

void OptimizerShards::drop_gradients() {
  for (const ShardedPiece& piece : pieces_) piece.values.mutable_grad().reset();
}

std::vector<at::Tensor> OptimizerShards::gradients() const {
  std::vector<at::Tensor> gradients;
  for (const ShardedPiece& piece : pieces_) {
    if (piece.values.grad().defined()) gradients.push_back(piece.values.grad());
  }
  return gradients;
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
    slices_[bucket].gather.emplace(allgather_async(
        peers_.context, slices_[bucket].values,
        {.name = round_.buckets()[bucket].name + ".parameters", .process_set = peers_.set}));
  }
}

void OptimizerShards::end_gather() {
  const at::NoGradGuard no_grad;
  const Parameter* written = nullptr;
  for (std::size_t bucket = 0; bucket < slices_.size(); ++bucket) {
    auto& gather = slices_[bucket].gather;
    if (!gather) continue;
    const at::Tensor all = gather->wait();
    gather.reset();
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
    if (!now.lies_as(then)) continue;  // the program's values are newer
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

}  // namespace hora::internal
