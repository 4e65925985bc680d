#include <hora/buffer.h>
#include <hora/error.h>
#include <hora/phase.h>
#include <hora/printable.h>
#include <hora/process_set.h>
#include <hora/timeline.h>
#include <spdlog/fmt/fmt.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <exception>

#include "core/api/internals.h"
#include "core/base/checked.h"
#include "core/base/settings.h"
#include "core/engine/engine.h"
#include "core/engine/interfaces.h"
#include "core/trace/trace.h"

namespace hora {
using namespace internal;
namespace {

const Topology& topology_of(const Context& context) {
  return engine_of(context)->parts().world.topology;
}

}  // namespace

Context::Context(std::shared_ptr<Engine> engine) noexcept : engine_(std::move(engine)) {}

Context& Context::operator=(Context&& other) noexcept {
  std::swap(engine_, other.engine_);
  return *this;
}

Context::~Context() {
  if (!engine_ || engine_->is_forked() || engine_->is_shut_down()) return;
  if (std::uncaught_exceptions() > 0) {
    Engine::abandon(std::move(engine_));
    return;
  }
  try {
    engine_->shutdown();
  } catch (const std::exception& error) {
    engine_->abort(error.what());
  }
}

const std::shared_ptr<Engine>& Context::engine() const {
  if (!engine_) throw Error(ErrorCode::invalid_use, "this hora::Context was moved from");
  return engine_;
}

int Context::rank() const {
  return engine()->parts().rank;
}
int Context::size() const {
  return topology_of(*this).size();
}
int Context::local_rank() const {
  return topology_of(*this).local_rank_of(rank());
}
int Context::local_size() const {
  return static_cast<int>(ranks_of_node(cross_rank()).size());
}
int Context::cross_rank() const {
  return topology_of(*this).node_of(rank());
}
int Context::cross_size() const {
  return topology_of(*this).nodes();
}

const std::vector<int>& Context::ranks_of_node(int node) const {
  const Topology& topology = topology_of(*this);
  if (node < 0 || node >= topology.nodes()) {
    throw Error(
        ErrorCode::invalid_argument,
        fmt::format("node {} does not exist: nodes are 0 to {}", node, topology.nodes() - 1));
  }
  return topology.ranks_of_node[static_cast<std::size_t>(node)];
}

bool Context::is_homogeneous() const {
  const Topology& topology = topology_of(*this);
  return topology.smallest_node() * topology.nodes() == topology.size();
}

bool Context::mpi_threads_supported() const {
  return engine()->parts().threads_supported;
}

Device Context::device() const {
  const EngineParts& parts = engine()->parts();
  return parts.device ? Device{DeviceKind::cuda, parts.device_index} : Device{};
}

const Settings& Context::settings() const {
  return engine()->parts().settings;
}
std::uint32_t Access::next_instance_number(const Context& context, ProcessSet set) {
  return context.engine()->next_instance_number(set);
}
void Access::at_shutdown(const Context& context, std::function<void()> action) {
  context.engine()->running().at_shutdown(std::move(action));
}
bool Access::has_failed(const Context& context) {
  return context.engine()->remaining().aborted();
}
Statistics Context::statistics() const {
  return engine()->remaining().sets().statistics();
}

void Context::progress() const {
  Engine& running = engine()->running();
  if (!running.has_thread()) running.progress();
}

void Context::shutdown() {
  engine()->shutdown();
}
bool Context::is_shut_down() const noexcept {
  return !engine_ || engine_->is_shut_down();
}

ProcessSet add_process_set(const Context& context, const std::vector<int>& ranks) {
  const auto refuse = [&](const std::string& why) {
    throw Error(ErrorCode::invalid_argument, "hora::add_process_set: " + why, context.rank());
  };
  std::vector<int> sorted = ranks;
  std::sort(sorted.begin(), sorted.end());
  if (sorted.empty()) refuse("a set has at least one rank");
  if (sorted.front() < 0 || sorted.back() >= context.size()) {
    refuse(fmt::format("rank {} does not exist: ranks are 0 to {}",
                       sorted.front() < 0 ? sorted.front() : sorted.back(), context.size() - 1));
  }
  const auto twice = std::adjacent_find(sorted.begin(), sorted.end());
  if (twice != sorted.end()) refuse("rank " + std::to_string(*twice) + " is given twice");
  return engine_of(context)->running().sets().add(sorted);
}

void remove_process_set(const Context& context, ProcessSet set) {
  engine_of(context)->running().sets().remove(set);
}

std::vector<int> ranks_of(const Context& context, ProcessSet set) {
  return engine_of(context)->remaining().sets().ranks_of(set);
}

int rank_in(const Context& context, ProcessSet set) {
  const auto& ranks = engine_of(context)->remaining().sets().ranks_of(set);
  const auto position = std::find(ranks.begin(), ranks.end(), context.rank());
  return position == ranks.end() ? -1 : static_cast<int>(position - ranks.begin());
}

int size_of(const Context& context, ProcessSet set) {
  return static_cast<int>(engine_of(context)->remaining().sets().ranks_of(set).size());
}

void note_phase(const Context& context, std::string_view phase) {
  engine_of(context)->running().parts().record().note_phase(phase);
}

void note_resumable(const Context& context, std::int64_t step) {
  engine_of(context)->running().parts().record().note_resumable(step);
}

int generation() noexcept {
  const char* const number = std::getenv(kGenerationVariable);
  return number == nullptr ? 1 : std::max(1, std::atoi(number));
}

bool is_asked_to_give_way() noexcept {
  const char* const commits = std::getenv(kCommitsVariable);
  return commits != nullptr && ::access((std::string(commits) + kGiveWaySuffix).c_str(), F_OK) == 0;
}

void give_way() noexcept {
  std::fflush(nullptr);
  std::_Exit(kGaveWay);
}

std::string start_timeline(const Context& context, const std::string& path) {
  engine_of(context)->running();
  const std::string wrong = wrong_with_timeline_path(path);
  if (!wrong.empty()) {
    throw Error(ErrorCode::invalid_argument, "start_timeline(" + in_quotes(path) + "): " + wrong,
                context.rank());
  }
  const EngineParts& parts = engine_of(context)->parts();
  const std::string file = timeline_file(path, parts.rank);
  parts.trace.trace()->start(file, identity_of(parts.world.topology, parts.rank));
  return file;
}

void stop_timeline(const Context& context) {
  engine_of(context)->remaining();
  engine_of(context)->parts().trace.trace()->stop();
}

void Access::set_device_cache_release(const Context& context, void (*give_back)()) {
  if (DeviceHeap* const heap = engine_of(context)->parts().device_heap) {
    heap->set_cache_release(give_back);
  }
}

Buffer::Buffer(const Context& context, std::size_t bytes, const Device& device)
    : engine_(engine_of(context)), size_(bytes), device_(device) {
  if (bytes > kMaxBytes) {
    throw Error(
        ErrorCode::invalid_argument,
        fmt::format("a buffer of {} bytes: at most 2^48, which is what a process can address",
                    bytes),
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

Buffer& Buffer::operator=(Buffer&& other) noexcept {
  std::swap(engine_, other.engine_);
  std::swap(data_, other.data_);
  std::swap(size_, other.size_);
  std::swap(device_, other.device_);
  return *this;
}

Buffer::~Buffer() {
  // While an exception unwinds, a dropped handle may leave a collective in flight here: no reuse.
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
