/// Values whose size other ranks do not know: bytes and text. hora does not interpret them; nothing
/// in them is executed. <hora/objects_json.h> does the same for nlohmann::json,
/// <hora/torch/objects.h> for tensors.
///
///     std::string text = world.rank() == 0 ? read_configuration() : "";
///     text = hora::broadcast_object(world, text, {.name = "configuration"});
///
/// Every rank of the process set must call with the same name (at most 1017 bytes), root and set.
/// Errors: collectives.h; besides, the same Error(mismatch) on every rank where roots differ.
/// Thread rule: any thread.
#pragma once

#include <hora/collectives.h>
#include <hora/context.h>
#include <hora/export.h>

#include <cstddef>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace HORA_EXPORT hora {

struct BroadcastObjectOptions {
  std::string name = {};
  int root = 0;  ///< world rank whose object all get
  ProcessSet process_set = kWorld;
};

/// The root's object on every rank. Other ranks' objects are ignored.
std::vector<std::byte> broadcast_object(const Context& context, std::span<const std::byte> object,
                                        const BroadcastObjectOptions& options = {});
std::string broadcast_object(const Context& context, std::string_view object,
                             const BroadcastObjectOptions& options = {});

/// Every rank's object on every rank, in the order of the set's ranks.
std::vector<std::vector<std::byte>> allgather_object(const Context& context,
                                                     std::span<const std::byte> object,
                                                     const AllgatherOptions& options = {});
std::vector<std::string> allgather_object(const Context& context, std::string_view object,
                                          const AllgatherOptions& options = {});

}  // namespace hora
