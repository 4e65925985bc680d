/// All settings of hora, in one struct. Each field is one HORA_* environment variable.
///
///     hora::Settings settings;
///     settings.bucket_size = std::size_t{8} << 20;
///     hora::Context world = hora::init(argc, argv, {.settings = settings});
///
/// Thread rule: any thread.
#pragma once

#include <hora/export.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace HORA_EXPORT hora {

/// How nodes add up their slices. `automatic` is `direct`.
enum class CrossAlgorithm : std::uint8_t { automatic = 0, direct = 1, ring = 2 };
/// Whether MPI is given GPU memory; `automatic`: where every rank's MPI says that it takes it.
enum class CudaAwareMpi : std::uint8_t { automatic = 0, on = 1, off = 2 };
/// Carrier of collectives on GPUs between nodes; `automatic`: NCCL where it finds a network
/// better than sockets on every rank, else MPI.
enum class GpuNetwork : std::uint8_t { automatic = 0, mpi = 1, nccl = 2 };
/// Whether LibTorch's tensors lie where the node's ranks reach them; `automatic`: where several
/// ranks of a node compute on the CPU.
enum class TensorArenaUse : std::uint8_t { automatic = 0, on = 1, off = 2 };
enum class LogLevel : std::uint8_t { debug = 0, info = 1, warning = 2, error = 3, off = 4 };

/// Rank 0's values hold for every rank; a rank that sets another value is an error. Set are those
/// that the environment has, and those of InitOptions::settings that are not the defaults here.
/// Sizes are in bytes. The variable of a field is HORA_ and its name; setting_descriptions(),
/// --help and docs/settings.md say of it what is said here, in the same words.
struct Settings {
  /// Splits each host into virtual nodes of this many ranks, to try the path of several nodes on
  /// one host; 0: a host is one node.
  int ranks_per_node = 0;

  /// In one node, sums from 1MiB up go from one memory (NUMA) node to the next, by so many
  /// consecutive ranks each, with the same results. 0: as the system says, where ranks are bound
  /// evenly to one each; 1: never.
  int ranks_per_memory_node = 0;

  /// Tensors that became ready together travel as one message up to this size; 0: each one alone.
  std::size_t fusion_threshold = std::size_t{64} << 20;

  /// Gradients are averaged in buckets of about this size, each as soon as it is full; 0: chosen
  /// automatically (4MiB in one node on CPU, 25MiB with a network or a GPU).
  std::size_t bucket_size = 0;

  /// Whether an optimizer's first 30 steps try other bucket sizes (where HORA_BUCKET_SIZE is 0),
  /// and no compression, and keep what is clearly faster: on, or the path of a file where rank 0
  /// keeps what was found for a model and ranks. Without compression the bits are others: only a
  /// file makes them the same in every run.
  ///
  /// Empty: off.
  std::string tuning = {};

  /// Larger messages are cut into chunks of this size, so that work in the nodes overlaps with
  /// transfers between them; 0: chosen automatically (1MiB up to 32 nodes, above that 32KiB a node,
  /// on GPUs at least 2MiB a rank of a node, at most 32MiB; of broadcasts 512KiB).
  std::size_t chunk_size = 0;

  /// Largest message that MPI gets for other nodes: over TCP longer ones wait for an answer behind
  /// the data that are under way. 0: chosen automatically (60KiB between hosts of which none has an
  /// active RDMA port, else unlimited).
  std::size_t message_size = 0;

  /// Up to this size each node sends its part to all others in the fewest steps (dissemination),
  /// and up to 16KiB with its readiness, where a name comes alone again and again; above it
  /// HORA_CROSS_ALGORITHM holds; 0: never.
  std::size_t small_message = std::size_t{4} << 10;

  /// How nodes add up their parts, with the same results: direct (each part is sent to its owner),
  /// ring (each node talks to two others only, for many nodes), or automatic (direct).
  CrossAlgorithm cross_algorithm = CrossAlgorithm::automatic;

  /// Number of tensor names, the last new ones, whose later collectives need no new agreement on
  /// shape and type.
  int id_capacity = 4096;

  /// How long a waiting thread polls before it sleeps; longer answers faster and burns more CPU.
  std::chrono::microseconds spin{50};

  /// A tensor that some ranks have submitted and others have not for this long, or that some do not
  /// finish, is reported with those ranks and what is known of them; so are ranks for which others
  /// wait in hora::init, join() or shutdown(); 0: never.
  std::chrono::milliseconds stall_warning{10000};

  /// A collective that is not complete this long after a rank has submitted it fails on every rank,
  /// naming the ranks that lack it or do not go on, and ends the job. Raise it where one rank works
  /// alone for longer (a validation, a checkpoint), or give the call its own limit
  /// (hora/collectives.h). join() and shutdown() have none, but a rank that is stopped (SIGSTOP)
  /// this long while others wait in shutdown() ends the job; 0: never.
  std::chrono::milliseconds timeout{60000};

  /// hora::init fails where some ranks have not called it for this long, or have left it; 0: it
  /// waits without limit.
  std::chrono::milliseconds init_timeout{300000};

  /// Keeps large freed blocks in the process, so that gradients cause no new page faults in each
  /// step (glibc's M_MMAP_THRESHOLD and M_TRIM_THRESHOLD).
  bool malloc_tuning = true;

  /// Whether LibTorch's CPU tensors from 64KiB up lie in memory that the node's ranks share, and
  /// are averaged where they lie: auto (where several ranks of a node compute on the CPU), on, or
  /// off (they are copied).
  TensorArenaUse tensor_arena = TensorArenaUse::automatic;

  /// The most memory of a rank's tensor arena, at most what the machine has left; tensors beyond it
  /// are copied; 0: half of the machine's memory, divided among the node's ranks.
  std::size_t tensor_arena_limit = 0;

  /// Whether tensors on GPUs can be averaged, where the build and every rank's machine have CUDA;
  /// off spares each rank the GPU memory that this takes.
  bool cuda = true;

  /// The carrier of collectives on GPUs between nodes: mpi (NCCL in the node, MPI and the CPU's
  /// sums between), nccl (one NCCL communicator, with NCCL's sums), or auto (nccl where NCCL finds
  /// a network better than sockets on every rank, else mpi).
  GpuNetwork gpu_network = GpuNetwork::automatic;

  /// The most thread blocks, and so multiprocessors of the GPU, that each of NCCL's kernels takes
  /// from backward; 0: as NCCL chooses (or NCCL_MAX_CTAS says).
  int nccl_ctas = 0;

  /// Whether buffers on GPUs become windows of NCCL's symmetric memory, where its collectives are
  /// faster and take fewer multiprocessors: in jobs of one node, with NCCL 2.27 or newer. One that
  /// is given back is freed with a later collective on another, or at the end.
  bool nccl_windows = false;

  /// Whether MPI gets GPU memory, or pinned host memory: auto (GPU memory where every rank's MPI
  /// says that it takes it), on (also where MPI says no or nothing; one that really cannot then
  /// crashes), or off.
  CudaAwareMpi cuda_aware_mpi = CudaAwareMpi::automatic;

  /// A collective that is under way on the GPU for longer than this fails, and so does everything
  /// after it; 0: never.
  std::chrono::milliseconds device_timeout{60000};

  /// Whether rank 0 prints at shutdown which ranks came last to collectives, how often and how
  /// late.
  bool report = false;

  /// Writes a timeline of all collectives for Perfetto or chrome://tracing, one file a rank: %r in
  /// the path is the rank, which otherwise is put before the extension (see hora/timeline.h).
  ///
  /// Empty: off.
  std::string timeline = {};

  /// Where each rank that fails writes what it did last (rank 3: hora-record.3.json, mode 0600),
  /// for `horarun --diagnose`; made where it is missing.
  ///
  /// Empty: off.
  std::string record_directory = {};

  /// The least severe message that is printed.
  LogLevel log_level = LogLevel::warning;

  /// Variables whose names begin with HORA_ and that are not meant for hora; others that it does
  /// not know are errors, but for HORA_ROOT, HORA_HOME, HORA_DIR, HORA_VERSION and the like, which
  /// module systems set for every package.
  ///
  /// With commas between them; empty: none.
  std::string allow_unknown = {};

  bool operator==(const Settings&) const = default;
};

/// One row of the settings table.
struct SettingDescription {
  std::string_view variable;       ///< "HORA_FUSION_THRESHOLD"
  std::string allowed;             ///< "bytes, with an optional suffix K, M, G, KiB, MiB or GiB"
  std::string_view documentation;  ///< one sentence
  std::string default_value;       ///< as one would write it: "64MiB"
  std::span<const std::string_view> choices = {};  ///< empty: a number or a text
};
std::span<const SettingDescription> setting_descriptions();

/// One "NAME=VALUE" that was set explicitly.
struct SettingAssignment {
  std::string variable;
  std::string value;
  bool operator==(const SettingAssignment&) const = default;
};

/// The HORA_* assignments in `environment` (entries "NAME=VALUE", such as `environ`'s).
std::vector<SettingAssignment> setting_assignments(std::span<const char* const> environment);

/// Settings with these assignments applied to the defaults. Throws Error(invalid_setting) naming
/// the variable, its value and what is allowed, for an unknown HORA_* name (with the nearest known
/// one), a bad suffix, a negative or overflowing number, or an unknown choice. Passed over are
/// names that module systems give every package (HORA_ROOT, HORA_HOME, HORA_LIB and the like), and
/// those that HORA_ALLOW_UNKNOWN lists.
Settings parse_settings(std::span<const SettingAssignment> assignments);

/// The value of each variable in `settings`, written so that parse_settings reads it back.
std::vector<SettingAssignment> to_assignments(const Settings& settings);

/// Those of them whose value is not the default: what InitOptions::settings counts as set.
std::vector<SettingAssignment> changed_assignments(const Settings& settings);

}  // namespace hora
