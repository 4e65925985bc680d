#include <hora/context.h>
#include <hora/error.h>
#include <hora/phase.h>
#include <hora/printable.h>
#include <hora/process_set.h>
#include <hora/timeline.h>
#include <spdlog/fmt/fmt.h>

#include <algorithm>
#include <exception>
#include <functional>
#include <string>
#include <utility>

#include "core/api/internals.h"
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
Context::Context(Context&&) noexcept = default;

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
  return engine()->remaining().statistics();
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
  return engine_of(context)->running().add_set(sorted);
}

void remove_process_set(const Context& context, ProcessSet set) {
  engine_of(context)->running().remove_set(set);
}

std::vector<int> ranks_of(const Context& context, ProcessSet set) {
  return engine_of(context)->remaining().ranks_of(set);
}

int rank_in(const Context& context, ProcessSet set) {
  const auto& ranks = engine_of(context)->remaining().ranks_of(set);
  const auto position = std::find(ranks.begin(), ranks.end(), context.rank());
  return position == ranks.end() ? -1 : static_cast<int>(position - ranks.begin());
}

int size_of(const Context& context, ProcessSet set) {
  return static_cast<int>(engine_of(context)->remaining().ranks_of(set).size());
}

void note_phase(const Context& context, std::string_view phase) {
  engine_of(context)->running().note_phase(phase);
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

}  // namespace hora
