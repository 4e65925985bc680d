/// Processes: identity, forked children, their states; the machine; its networks; new files.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

struct hwloc_topology;

namespace hora::internal {

/// One process of the job.
struct ProcessIdentity {
  int rank = -1;
  std::string host = {};
  std::int64_t pid = 0;
};

/// Tells ranks the name that horarun's user has for their host.
inline constexpr const char* kHostVariable = "HORARUN_HOST";

/// Tells ranks of an elastic job the number of their generation, and the folder in this host's
/// memory that all generations share.
inline constexpr const char* kGenerationVariable = "HORARUN_GENERATION";
inline constexpr const char* kCommitsVariable = "HORARUN_COMMITS";
/// Shared memory that horarun wants to be free for each rank; so much of it is left by what ranks
/// keep in that folder.
inline constexpr std::uint64_t kSharedMemoryOfRank = std::uint64_t{4} << 20;

/// Suffix of that folder's name, for a file that asks the generation to give way to another.
inline constexpr const char* kGiveWaySuffix = ".give-way";
/// Exit status of a rank that does (sysexits.h, EX_TEMPFAIL).
inline constexpr int kGaveWay = 75;

/// This host's name, as horarun has it; "unknown" where it has none.
std::string host_name();

/// A text that differs where pids mean something else (pid_namespaces(7)); else "unknown".
std::string pid_namespace();

/// By world rank; the rank alone where the process is not known.
inline ProcessIdentity identity_of(int rank, std::span<const ProcessIdentity> processes) {
  const auto r = static_cast<std::size_t>(rank);
  return r < processes.size() ? processes[r] : ProcessIdentity{.rank = rank};
}

/// This process as `rank`.
ProcessIdentity identity_of_process(int rank);

/// True where descriptors that are not the program's own have been closed since the first call, as
/// a loop of close() over all numbers does. Thread rule: any thread.
bool descriptors_are_gone() noexcept;

/// "rank 3 (host node7, pid 4242)"; what is not known is left out.
std::string to_string(const ProcessIdentity& process);

/// Tells a forked child, which has its parent's memory but no threads or place in the job: it may
/// destroy nothing that a ProcessOwner guards. Thread rule: any thread. Costs one load.
class ProcessOwner {
 public:
  ProcessOwner();
  /// False in every process forked from the one that made this.
  bool is_this_process() const noexcept;

 private:
  std::uint64_t forks_;  ///< that lay between the program's start and this process
};

enum class ProcessState : std::uint8_t {
  running,   ///< on a core, or ready for one
  sleeping,  ///< waits for something: a lock, a file, input, another process
  blocked,   ///< waits inside the kernel, where no signal reaches it: a disk, a network file system
  stopped,   ///< by SIGSTOP, or by ^Z on its terminal
  traced,    ///< stopped by a debugger
  gone,      ///< ended, whether its parent has taken note or not
  unknown,
};

/// /proc/PID/stat (proc(5)); the state is that of the process's first thread.
struct ProcessStat {
  std::int64_t pid = 0;
  std::int64_t parent = 0;
  ProcessState state = ProcessState::unknown;
  std::string name = {};
};

/// Parses that file's contents; none where they are not such.
std::optional<ProcessStat> parse_process_stat(std::string_view text);

/// Reads a process of this pid namespace; none where there is none, or it cannot be read.
std::optional<ProcessStat> process_stat(std::int64_t pid);

/// The same, and `gone` where there is no such process.
ProcessState process_state(std::int64_t pid);

/// This machine's processors, cores and memory nodes, as hwloc reads them.
using MachineTopology = std::unique_ptr<hwloc_topology, void (*)(hwloc_topology*)>;

/// Without caches, devices and what its control group leaves out. Null where hwloc cannot read it.
MachineTopology machine_topology();

/// The system's RDMA devices: those of InfiniBand, RoCE, Omni-Path and EFA.
inline constexpr const char* kRdmaDevices = "/sys/class/infiniband";

/// Their active ports, "mlx5_0 port 1", in order; of a folder like kRdmaDevices, if it exists.
std::vector<std::string> active_rdma_ports(const std::filesystem::path& devices = kRdmaDevices);

/// A new regular file for this user alone (mode 0600): one of that name is removed first. What else
/// has the name (a link, a folder, a FIFO, a device) stays, and is an error: nothing is followed,
/// written into, or waited for. Owns its descriptor; the file stays.
class NewFile {
 public:
  /// Throws Error(invalid_argument) that names the path and what is wrong with it.
  explicit NewFile(const std::string& path);
  ~NewFile();
  NewFile(const NewFile&) = delete;
  NewFile& operator=(const NewFile&) = delete;

  int descriptor() const noexcept { return descriptor_; }
  /// A name for streams that take names: of this very file, whatever its path names by now.
  std::string descriptor_path() const { return "/proc/self/fd/" + std::to_string(descriptor_); }

 private:
  int descriptor_;
};

}  // namespace hora::internal
