/// Values whose size other ranks do not know: bytes and text, which hora does not interpret.
/// <hora/objects_json.h> has them for nlohmann::json, <hora/torch/collectives.h> for tensors.
///
///     std::string text = world.rank() == 0 ? read_configuration() : "";
///     text = hora::broadcast_object(world, text, {.name = "configuration"});
///
/// Collective: the same name (at most 1017 bytes), root and set on every rank. Errors:
/// collectives.h; different roots are the same Error(mismatch) on every rank. Thread rule: any
/// thread.
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

/// Returns the root's object on every rank; other ranks' are ignored.
std::vector<std::byte> broadcast_object(const Context& context, std::span<const std::byte> object,
                                        const BroadcastObjectOptions& options = {});
std::string broadcast_object(const Context& context, std::string_view object,
                             const BroadcastObjectOptions& options = {});

/// Returns every rank's object, in the order of the set's ranks.
std::vector<std::vector<std::byte>> allgather_object(const Context& context,
                                                     std::span<const std::byte> object,
                                                     const AllgatherOptions& options = {});
std::vector<std::string> allgather_object(const Context& context, std::string_view object,
                                          const AllgatherOptions& options = {});

}  // namespace hora
