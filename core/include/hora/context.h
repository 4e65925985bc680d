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
class Engine;
struct Access;
}  // namespace hora::internal

namespace HORA_EXPORT hora {

/// Counters of this rank since init, summed over operations.
struct Statistics {
  std::uint64_t operations = 0;           ///< fulfilled collectives
  std::uint64_t bytes = 0;                ///< payload of those, each counted once
  std::chrono::nanoseconds in_flight{0};  ///< sum of (fulfilled - decided)
  std::uint64_t batches = 0;              ///< batches of decisions executed
};

struct InitOptions {
  /// False: the application calls Context::progress() until its handles are ready.
  bool engine_thread = true;
  /// The ranks of MPI_COMM_WORLD that use hora, ascending, the same list on each; others do not
  /// call init(). hora's ranks are positions in it. Empty: all. Lists that differ: Error(mismatch).
  std::vector<int> ranks = {};
  /// World ranks of process sets 1, 2, ..., the same on every rank; more by add_process_set().
  std::vector<std::vector<int>> process_sets = {};
  /// Fields that differ from the defaults count as if their HORA_* variables were set so. A
  /// variable with another value is the same Error(invalid_argument) on every rank.
  ///
  ///     hora::Settings settings;
  ///     settings.fusion_threshold = 16 << 20;
  ///     hora::Context world = hora::init({.settings = settings});
  Settings settings = {};
};

/// Owns hora in this process. The destructor calls shutdown(); while an exception unwinds, it has
/// the job end as a failure instead, when this process exits, within one second (3 s where another
/// rank has failed first, whose exit status is the job's). MPI_Finalize before shutdown() ends the
/// job. Move-only. Thread rule: const members from any thread; shutdown() when no other call is
/// under way.
class Context {
 public:
  Context(Context&&) noexcept = default;
  Context& operator=(Context&&) noexcept;
  ~Context();

  int rank() const;        ///< 0 .. size()-1, MPI's world rank
  int size() const;        ///< number of ranks
  int local_rank() const;  ///< 0 .. local_size()-1 within this rank's node
  int local_size() const;  ///< ranks of this rank's node
  int cross_rank() const;  ///< index of this rank's node, 0 .. cross_size()-1
  int cross_size() const;  ///< number of nodes
  /// World ranks of a node, ascending. Throws Error(invalid_argument) for an unknown node.
  const std::vector<int>& ranks_of_node(int node) const;
  bool is_homogeneous() const;  ///< every node has as many ranks

  /// True where the application may call MPI while hora runs (MPI_THREAD_MULTIPLE).
  bool mpi_threads_supported() const;

  /// This rank's GPU, or the CPU where the job has none.
  Device device() const;

  const Settings& settings() const;  ///< rank 0's, in force on every rank
  Statistics statistics() const;

  /// Makes the progress that is possible without blocking; nothing with an engine thread.
  void progress() const;

  /// Collective, without timeout: returns when all ranks have called it, then throws an error of
  /// this rank's handles that was never thrown. Later calls get shut_down. Late ranks are named
  /// after HORA_STALL_WARNING; one stopped (SIGSTOP) for HORA_TIMEOUT ends the job.
  void shutdown();
  bool is_shut_down() const noexcept;

 private:
  friend struct internal::Access;
  explicit Context(std::shared_ptr<internal::Engine> engine) noexcept;
  const std::shared_ptr<internal::Engine>& engine() const;

  std::shared_ptr<internal::Engine> engine_;
};

/// Starts hora on the ranks of MPI_COMM_WORLD, or those of the options (collective over them),
/// initialising MPI where the application has not; <hora/mpi.h> is for other communicators. Reads
/// HORA_*. Late ranks are reported after HORA_STALL_WARNING; after HORA_INIT_TIMEOUT those that
/// wait get Error(transport), and the job ends. Uses tags 32741 and 32742: meanwhile the
/// application may have no receive from any source with any tag open. The second form takes MPI's
/// arguments out of argv.
///
/// Throws on every rank Error(invalid_setting) for wrong settings, Error(invalid_argument) where
/// settings and environment differ, Error(mismatch) where process sets do; Error(transport) where
/// MPI does not offer what hora needs, Error(invalid_use) while hora runs in this process.
[[nodiscard("hora runs while the Context lives: keep it, as in `Context world = init();`")]] Context
init(const InitOptions& options = {});
[[nodiscard("hora runs while the Context lives: keep it, as in `Context world = init();`")]] Context
init(int& argc, char**& argv, const InitOptions& options = {});

/// True until shutdown() has returned (or init() thrown); another init() is refused. Any thread.
bool is_initialized() noexcept;

}  // namespace hora
