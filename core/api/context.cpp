#include <hora/context.h>
#include <hora/error.h>
#include <hora/phase.h>
#include <hora/printable.h>
#include <hora/process_set.h>
#include <hora/timeline.h>

#include <algorithm>
#include <exception>
#include <functional>
#include <string>
#include <utility>

#include "core/api/internals.h"
#include "core/base/settings.h"
#include "core/engine/parts.h"
#include "core/engine/runtime.h"
#include "core/trace/timeline_file.h"

namespace hora {
using namespace internal;

Context::Context(std::shared_ptr<Runtime> runtime) noexcept : runtime_(std::move(runtime)) {}
Context::Context(Context&&) noexcept = default;

Context& Context::operator=(Context&& other) noexcept {
  std::swap(runtime_, other.runtime_);
  return *this;
}

Context::~Context() {
  if (!runtime_ || runtime_->is_forked() || runtime_->is_shut_down()) return;
  if (std::uncaught_exceptions() > 0) {
    Runtime::abandon(std::move(runtime_));
    return;
  }
  try {
    runtime_->shutdown();
  } catch (const std::exception& error) {
    runtime_->abort(error.what());
  }
}

const std::shared_ptr<Runtime>& Context::runtime() const {
  if (!runtime_) throw Error(ErrorCode::invalid_use, "this hora::Context was moved from");
  return runtime_;
}

int Context::rank() const {
  return runtime()->parts().rank;
}
int Context::size() const {
  return runtime()->parts().world.topology.size();
}
int Context::local_rank() const {
  return runtime()->local_rank();
}
int Context::local_size() const {
  return static_cast<int>(ranks_of_node(cross_rank()).size());
}
int Context::cross_rank() const {
  return runtime()->node();
}
int Context::cross_size() const {
  return runtime()->parts().world.topology.nodes();
}

const std::vector<int>& Context::ranks_of_node(int node) const {
  const Topology& topology = runtime()->parts().world.topology;
  if (node < 0 || node >= topology.nodes()) {
    throw Error(ErrorCode::invalid_argument, "node " + std::to_string(node) +
                                                 " does not exist: nodes are 0 to " +
                                                 std::to_string(topology.nodes() - 1));
  }
  return topology.ranks_of_node[static_cast<std::size_t>(node)];
}

bool Context::is_homogeneous() const {
  const Topology& topology = runtime()->parts().world.topology;
  return topology.smallest_node() * topology.nodes() == topology.size();
}

bool Context::mpi_threads_supported() const {
  return runtime()->parts().threads_supported;
}

Device Context::device() const {
  const EngineParts& parts = runtime()->parts();
  return parts.device ? Device{DeviceKind::cuda, parts.device_index} : Device{};
}

const Settings& Context::settings() const {
  return runtime()->parts().settings;
}
std::uint32_t Access::next_instance_number(const Context& context, ProcessSet set) {
  return context.runtime()->next_instance_number(set);
}
void Access::at_shutdown(const Context& context, std::function<void()> action) {
  context.runtime()->at_shutdown(std::move(action));
}
bool Access::has_failed(const Context& context) {
  return context.runtime()->remaining_engine().poisoned();
}
Statistics Context::statistics() const {
  return runtime()->remaining_engine().statistics();
}

void Context::progress() const {
  Engine& engine = runtime()->engine();
  if (!engine.has_thread()) engine.progress();
}

void Context::shutdown() {
  runtime()->shutdown();
}
bool Context::is_shut_down() const noexcept {
  return !runtime_ || runtime_->is_shut_down();
}

ProcessSet add_process_set(const Context& context, const std::vector<int>& ranks) {
  const auto refuse = [&](const std::string& why) {
    throw Error(ErrorCode::invalid_argument, "hora::add_process_set: " + why, context.rank());
  };
  std::vector<int> sorted = ranks;
  std::sort(sorted.begin(), sorted.end());
  if (sorted.empty()) refuse("a set has at least one rank");
  if (sorted.front() < 0 || sorted.back() >= context.size()) {
    refuse("rank " + std::to_string(sorted.front() < 0 ? sorted.front() : sorted.back()) +
           " does not exist: ranks are 0 to " + std::to_string(context.size() - 1));
  }
  const auto twice = std::adjacent_find(sorted.begin(), sorted.end());
  if (twice != sorted.end()) refuse("rank " + std::to_string(*twice) + " is given twice");
  return runtime_of(context)->engine().add_set(sorted);
}

void remove_process_set(const Context& context, ProcessSet set) {
  runtime_of(context)->engine().remove_set(set);
}

std::vector<int> ranks_of(const Context& context, ProcessSet set) {
  return runtime_of(context)->remaining_engine().ranks_of(set);
}

int rank_in(const Context& context, ProcessSet set) {
  const auto& ranks = runtime_of(context)->remaining_engine().ranks_of(set);
  const auto position = std::find(ranks.begin(), ranks.end(), context.rank());
  return position == ranks.end() ? -1 : static_cast<int>(position - ranks.begin());
}

int size_of(const Context& context, ProcessSet set) {
  return static_cast<int>(runtime_of(context)->remaining_engine().ranks_of(set).size());
}

void note_phase(const Context& context, std::string_view phase) {
  runtime_of(context)->note_phase(phase);
}

std::string start_timeline(const Context& context, const std::string& path) {
  runtime_of(context)->check_running();
  const std::string wrong = wrong_with_timeline_path(path);
  if (!wrong.empty()) {
    throw Error(ErrorCode::invalid_argument, "start_timeline(" + in_quotes(path) + "): " + wrong,
                context.rank());
  }
  const EngineParts& parts = runtime_of(context)->parts();
  const std::string file = timeline_file(path, parts.rank);
  parts.trace.trace()->start(file, identity_of(parts.world.topology, parts.rank));
  return file;
}

void stop_timeline(const Context& context) {
  runtime_of(context)->check_owner();
  runtime_of(context)->parts().trace.trace()->stop();
}

}  // namespace hora
