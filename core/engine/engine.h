/// The machine that turns submissions into fulfilled handles.
#pragma once

#include <hora/context.h>
#include <hora/settings.h>

#include <atomic>
#include <chrono>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "core/board/board.h"
#include "core/engine/data_path.h"
#include "core/engine/device.h"
#include "core/engine/leader_desk.h"
#include "core/engine/name_table.h"
#include "core/engine/submission.h"
#include "core/engine/tree_link.h"
#include "core/negotiation/topology.h"
#include "core/trace/tracer.h"

namespace hora {

/// What an engine is made of. References outlive it.
struct EngineParts {
  Topology topology;
  int rank = 0;  ///< world rank
  Settings settings;
  NodeBoard* board = nullptr;
  NodeMemory* memory = nullptr;
  DataPath* data_path = nullptr;
  DevicePort* device = nullptr;  ///< where this process has one
  int device_index = 0;
  TreeLink* tree = nullptr;  ///< leaders of jobs of several nodes only
  Tracer trace = {};
};

/// Two locks. The *table* lock guards names and submissions and is held briefly. The *drive* lock
/// guards everything that makes progress (log, leader's desk, data path); its holder drives: the
/// engine thread, or, in a job of one node, a thread that waits for a result. In jobs of several
/// nodes only the engine thread drives, because only it may call MPI. Thread rule: submit, wait,
/// release, statistics: any thread. start, depart, stop: one thread.
class Engine {
 public:
  explicit Engine(EngineParts parts);
  ~Engine();
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;

  void start_thread();

  /// Copies the data in where peers cannot see it, and says that it is ready (on a device: once
  /// `stream` has come so far). `name` empty: unnamed (see collectives.h).
  std::shared_ptr<Submission> submit(std::string name, Signature signature, std::byte* data,
                                     void* stream = nullptr);
  /// submit() and wait(), without waking this rank's engine.
  void submit_and_wait(std::string name, Signature signature, std::byte* data,
                       void* stream = nullptr);
  /// Returns when finished; copies results out; throws the submission's error. Frees the name.
  void wait(Submission& submission);
  /// Lets go of a submission whose handle an exception has dropped.
  void orphan(const std::shared_ptr<Submission>& submission);

  /// Memory for buffers on the device. Throws Error(out_of_memory).
  std::byte* allocate_on_device(std::size_t bytes);
  void release_on_device(std::byte* data) noexcept;

  /// Makes what progress is possible; for engines without a thread.
  bool step();
  bool has_thread() const { return thread_.joinable(); }

  /// Waits for what is in flight, tells all ranks that this one leaves, and returns when all do.
  void depart();
  /// Ends the thread.
  void stop();

  Statistics statistics() const;
  bool poisoned() const { return poisoned_.load(); }

 private:
  /// Decided submissions of this rank, and where each local rank keeps its part.
  struct Batch {
    std::vector<std::shared_ptr<Submission>> submissions;
    std::vector<std::vector<Location>> locations;
  };
  struct Unfulfilled {
    std::uint64_t unit;
    std::vector<std::shared_ptr<Submission>> submissions;
  };

  // submitting
  enum class Caller { goes_on, waits };
  std::shared_ptr<Submission> submit(std::string name, Signature signature, std::byte* data,
                                     void* stream, Caller caller);
  void stage(Submission& submission, std::byte* data, Caller caller);
  Range direct_slice(const Submission& submission) const;
  void announce(const std::shared_ptr<Submission>& submission);
  void report(Submission& submission);
  void send_mail(const Mail& mail);
  void release(Submission& submission);
  void collect(Submission& submission);

  // driving
  bool drive(bool network);
  bool make_progress(bool network);
  bool flush_outbox();
  void execute(const LogBatch& batch);
  void execute_decision(const Decision& decision);
  void run(const Batch& batch);
  BoundUnit bind(Unit unit, const Batch& batch);
  bool fulfil();
  void finish(const std::shared_ptr<Submission>& submission, std::optional<Error> error);
  void fail_undecided(const Error& error);
  void poison(const Error& error);
  bool has_news() const;
  void complain_about_overdue();

  // waiting
  class DriverSeat;
  void drive_until_finished(const Submission& submission);
  void block_until_finished(const Submission& submission);
  void run_thread();
  void rest(Now idle);
  std::optional<std::chrono::nanoseconds> pause_length(Now idle);

  EngineParts parts_;
  NodeBoard& board_;
  const bool single_node_;
  std::vector<int> node_of_rank_;
  std::vector<int> local_rank_of_rank_;
  std::optional<LeaderDesk> desk_;  ///< of node leaders; under the drive lock

  mutable std::mutex table_lock_;
  NameTable table_;
  std::optional<Error> closed_;  ///< why nothing more can be submitted
  Statistics statistics_;
  std::deque<std::vector<std::byte>> outbox_;  ///< mail that found the mailbox full

  std::mutex drive_lock_;
  std::deque<Unfulfilled> unfulfilled_;
  std::uint64_t units_started_ = 0;
  bool device_busy_ = false;

  std::atomic<int> undecided_{0};  ///< my submissions that wait for other ranks
  std::atomic<int> waiters_{0};    ///< my threads that are blocked in wait()
  std::atomic<bool> poisoned_{false};
  std::atomic<bool> all_departed_{false};
  std::atomic<bool> stopping_{false};
  std::thread thread_;
};

/// The engine's clock.
Now now();

}  // namespace hora
