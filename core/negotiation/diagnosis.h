/// The texts of disagreements between ranks, and of tensors that wait for ranks.
#pragma once

#include <hora/collectives.h>

#include <map>
#include <span>
#include <string>
#include <vector>

#include "core/messages/messages.h"

namespace hora::internal {

/// One sentence naming the tensor, what differs, each value with its ranks (the first eight
/// values), and what to do.
std::string mismatch_text(const Report& report);

/// A tensor that some ranks have submitted and others have not. Ranks are ascending.
struct OverdueTensor {
  std::string name;
  std::vector<int> ready;
  std::vector<int> missing;  ///< known not to be ready
  std::vector<int> silent;   ///< of nodes that have said nothing about it
  /// Ranks that are not ready and wait under this name on another process set.
  std::map<ProcessSet, std::vector<int>> elsewhere = {};
};

/// One sentence about all of them: tensors that wait for the same ranks are named together (the
/// first few), and what can be done is said once; after it what is known of the ranks that lack
/// them (`remarks`, by rank; the first few).
std::string overdue_text(ProcessSet set, std::span<const OverdueTensor> tensors,
                         const std::map<int, std::string>& remarks = {});

}  // namespace hora::internal
