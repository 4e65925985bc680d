/// Finds the newest complete checkpoint on any rank, and gives what it holds to all.
#pragma once

#include <hora/context.h>

#include <chrono>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>

#include "frameworks/torch/checkpoint/checkpoint_parts.h"
#include "frameworks/torch/checkpoint/manifest.h"
#include "frameworks/torch/checkpoint/tensor_image.h"

namespace hora::internal {

struct LoadedCheckpoint {
  Manifest manifest;        ///< of the main part
  std::string from;         ///< "last" of rank 1, for messages
  std::int64_t latest = 0;  ///< time of the latest save of all that were found
  std::optional<NamedTensors> weights;
  std::set<std::string> names;  ///< of the parts that were saved, also of those without entries
  std::map<std::string, SavedPart> parts;
};

/// Loads from local rank 0's `folder` on every node, slot `slot` where not empty. Every file has
/// been read and checked. What is refused is named in a warning of rank 0. Nothing where there is
/// no checkpoint at all. Throws the same Error(invalid_argument) on every rank where there is none
/// that is complete and undamaged. Collective; `timeout`: CheckpointOptions.
std::optional<LoadedCheckpoint> load_newest(const Context& context, const std::string& folder,
                                            const std::string& slot,
                                            std::chrono::milliseconds timeout);

}  // namespace hora::internal
