#include "frameworks/torch/checkpoint/checkpoint_parts.h"

#include <ATen/Context.h>
#include <ATen/core/Generator.h>
#include <hora/error.h>
#include <hora/printable.h>

#include <charconv>
#include <mutex>
#include <unordered_map>
#include <utility>

#include "frameworks/torch/checkpoint/optimizer_state.h"
#include "frameworks/torch/optimizer/optimizer.h"
#include "frameworks/torch/tensor_view.h"

namespace hora::internal {
namespace {

constexpr std::string_view kRanks = "ranks/";

/// All that any rank has saved.
std::vector<NamedTensors> all_of(const SavedPart& part) {
  std::vector<NamedTensors> all{part.shared};
  for (const auto& [rank, entries] : part.of_rank) all.push_back(entries);
  return all;
}

[[noreturn]] void refuse_entry(const std::string& name) {
  throw Error(ErrorCode::invalid_argument,
              "the checkpoint's entry " + in_quotes(name) + " has the name of no part");
}

std::vector<at::Generator> generators_of(const Context& context) {
  std::vector<at::Generator> generators{at::globalContext().defaultGenerator(at::kCPU)};
  if (const at::Device device = to_torch(context.device()); device.is_cuda()) {
    generators.push_back(at::globalContext().defaultGenerator(device));
  }
  return generators;
}

std::string name_of_device(const at::Generator& generator) {
  return generator.device().is_cuda() ? "cuda" : "cpu";
}

}  // namespace

CheckpointPart plain_part(int rank, const std::string& name, CheckpointScope scope,
                          std::function<NamedTensors()> save,
                          std::function<void(const NamedTensors&)> load) {
  const auto load_own = [rank, scope, load = std::move(load)](const SavedPart& saved) {
    if (scope == CheckpointScope::shared) return load(saved.shared);
    const auto found = saved.of_rank.find(rank);
    if (found != saved.of_rank.end()) load(found->second);
  };
  return {name, scope, std::move(save), load_own};
}

CheckpointPart optimizer_part(const Context& context, const std::string& name,
                              DistributedOptimizer& optimizer) {
  const auto implementation = [&optimizer]() -> OptimizerImplementation& {
    return *OptimizerImplementation::together({&optimizer}, "Checkpoint").front();
  };
  const bool sharded = implementation().is_sharded() && context.size() > 1;
  CheckpointPart part;
  part.name = name;
  part.scope = sharded ? CheckpointScope::shard : CheckpointScope::shared;
  part.prepare = [implementation] { implementation().complete_parameters(); };
  part.save = [implementation, name] {
    implementation().check_between_steps("save() of " + in_quotes(name));
    return state_of(implementation().optimizer(), implementation().pieces());
  };
  part.load = [implementation](const SavedPart& saved) {
    load_state(implementation().optimizer(), implementation().pieces(), all_of(saved));
  };
  return part;
}

CheckpointPart optimizer_part(const std::string& name, torch::optim::Optimizer& optimizer,
                              const NamedTensors& named_parameters) {
  std::unordered_map<const void*, std::string> names;
  for (const auto& item : named_parameters) {
    names.emplace(item.value().unsafeGetTensorImpl(), item.key());
  }
  std::vector<OptimizerPiece> pieces;
  for (const auto& group : optimizer.param_groups()) {
    for (const at::Tensor& parameter : group.params()) {
      const auto found = names.find(parameter.unsafeGetTensorImpl());
      if (found == names.end()) {
        throw Error(ErrorCode::invalid_argument,
                    "Checkpoint: optimizer " + in_quotes(name) +
                        " has a parameter that is not among named_parameters");
      }
      pieces.push_back({found->second, parameter, parameter});
    }
  }
  CheckpointPart part;
  part.name = name;
  part.save = [&optimizer, pieces] { return state_of(optimizer, pieces); };
  part.load = [&optimizer, pieces](const SavedPart& saved) {
    load_state(optimizer, pieces, all_of(saved));
  };
  return part;
}

CheckpointPart hook_part(const Context& context, const std::string& name, GradientHook& hook) {
  CheckpointPart part;
  part.name = name;
  part.scope = CheckpointScope::shard;
  part.save = [&hook] { return hook.state(); };
  part.load = [&context, &hook](const SavedPart& saved) {
    const bool same_ranks = saved.of_rank.size() == static_cast<std::size_t>(context.size());
    hook.set_state(same_ranks ? saved.of_rank.at(context.rank()) : NamedTensors());
  };
  return part;
}

CheckpointPart random_part(const Context& context, const std::string& name) {
  const auto save = [&context] {
    NamedTensors states;
    for (at::Generator& generator : generators_of(context)) {
      const std::lock_guard lock(generator.mutex());
      states.insert(name_of_device(generator), generator.get_state());
    }
    return states;
  };
  const auto load = [&context](const NamedTensors& states) {
    for (at::Generator& generator : generators_of(context)) {
      const at::Tensor* const state = states.find(name_of_device(generator));
      const std::lock_guard lock(generator.mutex());
      if (state) generator.set_state(state->clone());
    }
  };
  return plain_part(context.rank(), name, CheckpointScope::each_rank, save, load);
}

NamedTensors entries_of(std::span<const CheckpointPart> parts, CheckpointScope scope) {
  NamedTensors entries;
  for (const CheckpointPart& part : parts) {
    if (part.scope != scope) continue;
    for (const auto& item : part.save()) {
      entries.insert(part.name + "/" + item.key(), item.value());
    }
  }
  return entries;
}

void add_entries_of_rank(NamedTensors& into, int rank, const NamedTensors& entries) {
  const std::string prefix = std::string(kRanks) + std::to_string(rank) + "/";
  for (const auto& item : entries) into.insert(prefix + item.key(), item.value());
}

void take_entries(std::map<std::string, SavedPart>& parts, const NamedTensors& entries) {
  for (const auto& item : entries) {
    std::string name = item.key();
    int rank = -1;
    if (name.starts_with(kRanks)) {
      const char* const end = name.data() + name.size();
      const auto number = std::from_chars(name.data() + kRanks.size(), end, rank);
      if (number.ec != std::errc() || number.ptr == end || *number.ptr != '/' || rank < 0) {
        refuse_entry(name);
      }
      name.erase(0, static_cast<std::size_t>(number.ptr + 1 - name.data()));
    }
    const auto slash = name.find('/');
    if (slash == std::string::npos) refuse_entry(item.key());
    SavedPart& part = parts[name.substr(0, slash)];
    NamedTensors& of = rank < 0 ? part.shared : part.of_rank[rank];
    of.insert(name.substr(slash + 1), item.value());
  }
}

}  // namespace hora::internal
