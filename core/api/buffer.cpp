// hora/buffer.h, and the memory of the node's other ranks (internals.h).
#include <hora/buffer.h>
#include <hora/collectives.h>
#include <hora/error.h>
#include <hora/process_set.h>

#include <algorithm>
#include <exception>
#include <string>
#include <utility>

#include "core/api/internals.h"
#include "core/base/checked.h"
#include "core/engine/engine.h"

namespace hora {
using namespace internal;

void Access::set_device_cache_release(const Context& context, void (*give_back)()) {
  if (DeviceHeap* const heap = engine_of(context)->parts().device_heap) {
    heap->set_cache_release(give_back);
  }
}

Buffer::Buffer(const Context& context, std::size_t bytes, const Device& device)
    : engine_(engine_of(context)), size_(bytes), device_(device) {
  if (bytes > kMaxBytes) {
    throw Error(ErrorCode::invalid_argument,
                "a buffer of " + std::to_string(bytes) +
                    " bytes: at most 2^48, which is what a process can address",
                context.rank());
  }
  if (device == Device{}) {
    data_ = engine_->running().memory().allocate(bytes).data;
    return;
  }
  engine_->running();
  check_device(engine_->parts(), device, "a buffer");
  data_ = engine_->allocate_on_device(bytes);
}

Buffer::Buffer(Buffer&& other) noexcept
    : engine_(std::move(other.engine_)),
      data_(std::exchange(other.data_, nullptr)),
      size_(std::exchange(other.size_, 0)),
      device_(other.device_) {}

Buffer& Buffer::operator=(Buffer&& other) noexcept {
  std::swap(engine_, other.engine_);
  std::swap(data_, other.data_);
  std::swap(size_, other.size_);
  std::swap(device_, other.device_);
  return *this;
}

Buffer::~Buffer() {
  // While an exception unwinds, a dropped handle may leave a collective in flight on this memory:
  // then it is not reused.
  if (!data_ || std::uncaught_exceptions() > 0 || engine_->is_forked()) return;
  if (device_.kind == DeviceKind::cpu) {
    engine_->memory().release(data_);
  } else {
    engine_->release_on_device(data_);
  }
}

bool internal::share_memory(const Context& context, ProcessSet set) {
  const auto& node = context.ranks_of_node(context.cross_rank());
  const auto members = ranks_of(context, set);
  return std::includes(node.begin(), node.end(), members.begin(), members.end());
}

std::vector<std::byte*> internal::peer_addresses(const Context& context, ProcessSet set,
                                                 const std::string& name, const std::byte* data,
                                                 std::size_t bytes) {
  const std::optional<Location> own = location_of(context, data, bytes);
  if (!own || !share_memory(context, set)) {
    throw Error(ErrorCode::invalid_argument,
                "peer_addresses: a block outside of hora's buffers, or a set of several nodes",
                context.rank(), name);
  }
  const std::vector<std::int64_t> sent{own->window, static_cast<std::int64_t>(own->offset)};
  const auto members = ranks_of(context, set);
  std::vector<std::int64_t> all(sent.size() * members.size());
  allgather_into(context, view(sent), view(all), {.name = name, .process_set = set});
  std::vector<std::byte*> addresses;
  for (std::size_t i = 0; i < members.size(); ++i) {
    const Location location{.window = static_cast<std::uint32_t>(all[2 * i]),
                            .offset = static_cast<std::uint64_t>(all[2 * i + 1])};
    addresses.push_back(peer_address(context, members[i], location, bytes));
  }
  return addresses;
}

std::optional<Location> internal::location_of(const Context& context, const std::byte* data,
                                              std::size_t bytes) {
  return engine_of(context)->running().memory().find(data, bytes);
}

std::byte* internal::peer_address(const Context& context, int rank, Location location,
                                  std::size_t bytes) {
  const Engine& engine = engine_of(context)->running();
  return engine.memory().address(engine.parts().world.topology.local_rank_of(rank), location,
                                 bytes);
}

}  // namespace hora
