/// The world of ranks, and where this process stands in it.
///
///     hora::Context world = hora::init(argc, argv);              // started by horarun
///     std::printf("rank %d of %d\n", world.rank(), world.size());
///     world.shutdown();                                          // or by its destructor
#pragma once

#include <hora/export.h>
#include <hora/settings.h>
#include <hora/types.h>

#include <chrono>
#include <cstdint>
#include <memory>
#include <vector>

namespace hora::internal {
class Runtime;
struct Access;
}  // namespace hora::internal

namespace HORA_EXPORT hora {

/// Counters of this rank's engine since init. Times are summed over operations.
struct Statistics {
  std::uint64_t operations = 0;           ///< fulfilled collectives
  std::uint64_t bytes = 0;                ///< payload of those, each counted once
  std::chrono::nanoseconds in_flight{0};  ///< sum of (fulfilled - decided)
  std::uint64_t batches = 0;              ///< batches of decisions executed
};

struct InitOptions {
  /// False: no engine thread; the application calls Context::progress() until its handles are
  /// ready.
  bool engine_thread = true;
  /// The ranks of MPI_COMM_WORLD that use hora, ascending: each of them calls init() with this same
  /// list, others do not call it. hora's ranks are positions in the list, also in messages. Empty:
  /// all. Two ranks that are in each other's lists and call init() with different ones both get
  /// Error(mismatch).
  std::vector<int> ranks = {};
  /// Process sets to begin with, each a list of world ranks: ProcessSet(1), ProcessSet(2), ... in
  /// this order. The same on every rank; others can be added and removed later (process_set.h).
  std::vector<std::vector<int>> process_sets = {};
  /// Settings that the program makes itself. A field with another value than in a
  /// default-constructed Settings counts as if its HORA_* variable were set to that value in this
  /// process's environment; a field with its default is not set, and leaves the variable alone. A
  /// setting that the environment has, too, with another value, is the same Error(invalid_argument)
  /// on every rank, naming the variable and both values. Fields' bounds, and what else Settings
  /// says, hold as for variables: Error(invalid_setting).
  ///
  ///     hora::Settings settings;
  ///     settings.fusion_threshold = 16 << 20;
  ///     hora::Context world = hora::init({.settings = settings});
  Settings settings = {};
};

/// Owner of hora in this process, made by init(). Move-only. The destructor calls shutdown(). While
/// an exception unwinds the stack it does not wait for peers but has the whole job end, as a
/// failure: when this process exits, so that a catch clause can still print what it
/// says, and one second later at the latest. Where another rank has failed first, its process is
/// waited for before that, for 3 s at most: its exit status is the job's. MPI_Finalize before
/// shutdown() ends the job, with a message. Thread rule: every const member may be called from any
/// thread; shutdown() from one thread, when no other call is under way.
class Context {
 public:
  Context(Context&&) noexcept;
  Context& operator=(Context&&) noexcept;
  ~Context();

  int rank() const;        ///< 0 .. size()-1, MPI's world rank
  int size() const;        ///< number of ranks
  int local_rank() const;  ///< 0 .. local_size()-1 within this rank's node
  int local_size() const;  ///< ranks of this rank's node
  int cross_rank() const;  ///< index of this rank's node, 0 .. cross_size()-1
  int cross_size() const;  ///< number of nodes
  /// World ranks of node `node`, ascending. Throws Error(invalid_argument) for an unknown node.
  const std::vector<int>& ranks_of_node(int node) const;
  bool is_homogeneous() const;  ///< every node has as many ranks

  /// MPI gives MPI_THREAD_MULTIPLE: the application may call MPI itself while hora runs.
  bool mpi_threads_supported() const;

  /// Where this rank should compute: its GPU, or the CPU where the job has none.
  Device device() const;

  const Settings& settings() const;  ///< rank 0's, in force on every rank
  Statistics statistics() const;

  /// Makes the progress that is possible now, without blocking. For InitOptions::engine_thread ==
  /// false; with an engine thread it does nothing.
  void progress() const;

  /// Collective: returns when all ranks have called it; then throws an error of this rank's handles
  /// if none was ever thrown. Later calls, and ranks that wait for its tensors, get shut_down. No
  /// timeout: a rank may work alone while others wait here, and is named after HORA_STALL_WARNING;
  /// one that is stopped (SIGSTOP) for HORA_TIMEOUT meanwhile ends the job.
  void shutdown();
  bool is_shut_down() const noexcept;

 private:
  friend struct internal::Access;
  explicit Context(std::shared_ptr<internal::Runtime> runtime) noexcept;
  const std::shared_ptr<internal::Runtime>& runtime() const;

  std::shared_ptr<internal::Runtime> runtime_;
};

/// Starts hora on every rank of MPI_COMM_WORLD, or those of the options (collective over them);
/// <hora/mpi.h> has it for those of another communicator. Initialises MPI where the application has
/// not. Reads HORA_* from the environment. Ranks that
/// others wait for are reported after HORA_STALL_WARNING; after HORA_INIT_TIMEOUT those that wait
/// get Error(transport), and the job ends with their processes, for MPI_Finalize would wait, too.
/// Ranks find each other by messages of tags 32741 and 32742 on that communicator: meanwhile the
/// application may have no receive from any source with any tag open on it. Throws
/// Error(invalid_setting) on every rank when any rank's environment or settings are wrong,
/// Error(invalid_argument) on every rank when on any rank the two differ, Error(transport)
/// where MPI does not offer what hora needs, Error(invalid_use) when hora is running already in
/// this process; what add_process_set() throws, and the same Error(mismatch) on every rank where
/// their process sets differ.
[[nodiscard("hora runs while the Context lives: keep it, as in `Context world = init();`")]] Context
init(const InitOptions& options = {});
/// The same; MPI takes its own arguments out of argv.
[[nodiscard("hora runs while the Context lives: keep it, as in `Context world = init();`")]] Context
init(int& argc, char**& argv, const InitOptions& options = {});

/// True from a call of init() until it has thrown or shutdown() has returned: another init() is
/// refused meanwhile. Any thread.
bool is_initialized() noexcept;

}  // namespace hora
