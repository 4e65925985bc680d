/// Everything that one init() has made.
#pragma once

#include <hora/settings.h>

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>

#include "core/engine/engine.h"

namespace hora {

/// What ops has put together for an engine, and owns.
class Transport {
 public:
  virtual ~Transport() = default;
  /// For the one engine; references stay valid as long as the transport.
  virtual EngineParts parts() = 0;
  /// Frees communicators once every rank has departed. Memory stays until destruction. Collective.
  virtual void disconnect() = 0;
  /// Ends every rank of the job without waiting for anything.
  [[noreturn]] virtual void abort() noexcept = 0;
};

/// Shared by the context, its handles and its buffers. Thread rule: as Context.
class Runtime {
 public:
  Runtime(std::unique_ptr<Transport> transport, bool engine_thread);
  ~Runtime();

  const EngineParts& parts() const { return parts_; }
  Engine& engine() { return engine_; }
  NodeMemory& memory() { return *parts_.world.memory; }
  int node() const { return node_; }
  int local_rank() const { return local_rank_; }
  bool is_shut_down() const { return shut_down_; }

  /// Tells objects of one kind apart that every rank of the set constructs in one order.
  std::uint32_t next_instance_number(ProcessSet set);

  /// Collective. Does nothing the second time.
  void shutdown();
  /// Prints why and ends the job.
  [[noreturn]] void abort(const std::string& why) noexcept;

 private:
  std::unique_ptr<Transport> transport_;
  EngineParts parts_;
  int node_;
  int local_rank_;
  Engine engine_;
  std::mutex instances_lock_;
  std::map<ProcessSet, std::uint32_t> instances_;
  bool shut_down_ = false;
};

}  // namespace hora
