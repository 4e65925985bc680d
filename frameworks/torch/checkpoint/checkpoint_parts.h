/// Parts of a checkpoint beside the weights, and the names of its entries:
/// "<part>/<entry>", and "ranks/<rank>/<part>/<entry>" of what is a rank's own.
#pragma once

#include <hora/context.h>
#include <hora/torch/checkpoint.h>

#include <functional>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "frameworks/torch/checkpoint/tensor_image.h"

namespace hora::internal {

/// One part as it was saved.
struct SavedPart {
  NamedTensors shared = NamedTensors();
  std::map<int, NamedTensors> of_rank;
};

struct CheckpointPart {
  std::string name;
  CheckpointScope scope = CheckpointScope::shared;
  std::function<NamedTensors()> save;  ///< not copied
  std::function<void(const SavedPart&)> load;
  std::function<void()> prepare = [] {};  ///< before any part is saved or loaded, on every rank
};

/// Makes a part whose entries are one rank's: `load` gets `rank`'s, or rank 0's of shared ones;
/// where that rank has saved none, it is not called.
CheckpointPart plain_part(int rank, const std::string& name, CheckpointScope scope,
                          std::function<NamedTensors()> save,
                          std::function<void(const NamedTensors&)> load);
CheckpointPart optimizer_part(const Context& context, const std::string& name,
                              DistributedOptimizer& optimizer);
CheckpointPart optimizer_part(const std::string& name, torch::optim::Optimizer& optimizer,
                              const NamedTensors& named_parameters);
/// By another number of ranks it begins anew, on all of them: what ranks remember belongs together.
CheckpointPart hook_part(const Context& context, const std::string& name, GradientHook& hook);
CheckpointPart random_part(const Context& context, const std::string& name);

/// The entries of all parts of this scope.
NamedTensors entries_of(std::span<const CheckpointPart> parts, CheckpointScope scope);
/// Those of one rank, with their names in a file.
void add_entries_of_rank(NamedTensors& into, int rank, const NamedTensors& entries);
/// Puts a file's entries where they belong. Throws Error(invalid_argument) for a name that is none.
void take_entries(std::map<std::string, SavedPart>& parts, const NamedTensors& entries);

}  // namespace hora::internal
