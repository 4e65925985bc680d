/// hora's access to what is not public in public classes, and to peers' memory; shared checks.
#pragma once

#include <hora/context.h>
#include <hora/result.h>

#include <utility>

#include "core/control_block/tensor_id.h"

namespace hora::internal {

struct EngineParts;

/// A friend of these classes. Thread rule: as theirs.
struct Access {
  static Context context(std::shared_ptr<Engine> engine) { return Context(std::move(engine)); }
  /// Throws Error(invalid_use) for a moved-from context.
  static const std::shared_ptr<Engine>& engine(const Context& context) { return context.engine(); }
  /// 0, 1, 2, ... in the order of calls for a process set, equal on ranks that call in one order.
  HORA_EXPORT static std::uint32_t next_instance_number(const Context& context, ProcessSet set);
  /// See Engine::at_shutdown().
  HORA_EXPORT static void at_shutdown(const Context& context, std::function<void()> action);
  /// A collective has failed such that peers may write to its memory from now on, at any time.
  HORA_EXPORT static bool has_failed(const Context& context);
  /// As DeviceHeap::set_cache_release(); nothing without a device.
  HORA_EXPORT static void set_device_cache_release(const Context& context, void (*give_back)());

  static Handle handle(std::shared_ptr<Engine> engine, std::shared_ptr<Operation> operation) {
    return {std::move(engine), std::move(operation)};
  }
  static Result result(std::shared_ptr<ResultMemory> memory) { return Result(std::move(memory)); }
  static ResultHandle result_handle(Handle handle, std::shared_ptr<ResultMemory> memory) {
    return {std::move(handle), std::move(memory)};
  }
};

inline const std::shared_ptr<Engine>& engine_of(const Context& context) {
  return Access::engine(context);
}

/// Whether all ranks of the set map each other's windows: they are of one node.
HORA_EXPORT bool share_memory(const Context& context, ProcessSet set);

/// Addresses in this process of the block that each rank of the set gives, by its rank in the set:
/// `bytes` long everywhere, inside a Buffer of the CPU. They are valid while that rank has the
/// Buffer. Collective, under `name`. Throws Error(invalid_argument) where the block is in no
/// Buffer, or the ranks do not share_memory(). Thread rule: any thread.
HORA_EXPORT std::vector<std::byte*> peer_addresses(const Context& context, ProcessSet set,
                                                   const std::string& name, const std::byte* data,
                                                   std::size_t bytes);

/// Where the other ranks of the node find this rank's [data, data + bytes), by peer_address();
/// nothing where that is not inside a Buffer of the CPU. Thread rule: any thread.
HORA_EXPORT std::optional<Location> location_of(const Context& context, const std::byte* data,
                                                std::size_t bytes);

/// The address in this process of `bytes` bytes at `location` of `rank` (of the world, on this
/// node), while it has the Buffer; mapped when first asked for. Throws Error(transport) where it
/// has no such memory. Thread rule: any thread.
HORA_EXPORT std::byte* peer_address(const Context& context, int rank, Location location,
                                    std::size_t bytes);

/// Throws Error(invalid_argument) for a name that is too long, or has a zero byte.
void check_name(const std::string& name);

/// Throws Error(invalid_argument) "<what> ..." where `device`, not Device{}, is not this rank's.
void check_device(const EngineParts& parts, const Device& device, const std::string& what,
                  const std::string& tensor = {});

/// Throws Error(invalid_argument) where an output has other than the result's bytes.
void check_output_length(std::string_view name, std::size_t output, std::size_t result,
                         DataType type);

}  // namespace hora::internal
