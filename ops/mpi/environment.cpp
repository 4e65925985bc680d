#include "ops/mpi/environment.h"

#include <fmt/format.h>
#include <hora/error.h>
#include <mpi.h>
#if defined(HORA_MPI_HAS_MPIX_QUERY_CUDA_SUPPORT)
#include <mpi-ext.h>
#endif
#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cctype>
#include <charconv>
#include <cstdio>
#include <cstdlib>
#include <thread>
#include <utility>

#include "core/base/log.h"
#include "core/base/process.h"
#include "ops/mpi/communicator.h"

namespace hora::internal {
namespace {

enum class Family { unknown, open_mpi, mpich };

Family family_of(std::string_view text) {
  const auto has = [&](std::string_view word) { return text.find(word) != text.npos; };
  if (has("Open MPI")) return Family::open_mpi;
  if (has("MPICH") || has("Intel(R) MPI") || has("MVAPICH")) return Family::mpich;
  return Family::unknown;
}

/// The first number of the text; 0 where there is none.
int major_version_of(std::string_view text) {
  const auto digit = std::ranges::find_if(
      text, [](char c) { return std::isdigit(static_cast<unsigned char>(c)) != 0; });
  return std::atoi(std::string(digit, text.end()).c_str());
}

struct Launcher {
  const char* variable;
  std::string_view name;
};

// The innermost launcher's variable counts: mpirun inside a Slurm step sets both. Slurm's number is
// the step's (SLURM_NTASKS is the job's, and set in a batch script that srun has not started).
constexpr Launcher kLaunchers[] = {
    {"OMPI_COMM_WORLD_SIZE", "Open MPI's mpirun"},
    {"PMI_SIZE", "a PMI launcher (MPICH's or Intel's mpiexec)"},
    {"SLURM_STEP_NUM_TASKS", "Slurm's srun"},
};

/// 0 where it is no number.
long number_of(std::string_view digits) {
  long number = 0;
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), number);
  return error == std::errc() && end == digits.data() + digits.size() ? number : 0;
}

/// Since version 5 mpirun says which one it is; before, its runtime was ORTE.
std::string version_of_mpirun(const EnvironmentLookup& lookup) {
  if (const char* version = lookup("OMPI_VERSION")) return std::string(" ") + version;
  return lookup("OMPI_MCA_orte_launch") ? " of version 4 or earlier" : "";
}

std::optional<std::string> older_mpirun(std::string_view library, const EnvironmentLookup& lookup) {
  if (!is_open_mpi_from(5, library) || !lookup("OMPI_MCA_orte_launch") || lookup("OMPI_VERSION")) {
    return std::nullopt;
  }
  return fmt::format(
      "this program has loaded {}, but Open MPI's mpirun of version 4 or earlier started it: use "
      "the mpirun that belongs to the library",
      library);
}

// MPI's state belongs to the process, and so does hora's record of it.
struct MpiState {
  ProcessOwner owner;
  std::atomic<int> holders{0};
  std::atomic<bool> aborting{false};
  std::atomic<bool> abandoned{false};
  std::function<void()> before_abort = [] {};  ///< where it is abandoned
  bool exit_handler_registered = false;
  bool initialized_here = false;
};

MpiState& mpi_state() {
  static MpiState state;
  return state;
}

/// This thread is the one that aborts.
thread_local bool aborting_here = false;

/// An abort under way in another thread ends this process; exiting meanwhile would hide its code.
constexpr auto kAbortTakes = std::chrono::seconds(5);

/// Launchers drop what they have not forwarded when they are told to abort.
constexpr auto kForwardingTakes = std::chrono::milliseconds(100);

/// Flushes what the program has printed so far, without waiting for its reader.
void flush_output() noexcept {
  std::fflush(stderr);
  pollfd output{.fd = STDOUT_FILENO, .events = POLLOUT, .revents = 0};
  const bool takes_more = ::poll(&output, 1, 0) == 1 && (output.revents & POLLOUT) != 0;
  if (!takes_more || ::ftrylockfile(stdout) != 0) return;
  std::fflush(stdout);
  ::funlockfile(stdout);
}

std::string_view thread_level_name(int level) {
  if (level == MPI_THREAD_SINGLE) return "MPI_THREAD_SINGLE";
  return level == MPI_THREAD_FUNNELED ? "MPI_THREAD_FUNNELED" : "an unknown thread level";
}

bool mpi_is_initialized() noexcept {
  int initialized = 0;
  return MPI_Initialized(&initialized) == MPI_SUCCESS && initialized != 0;
}

int world_rank() noexcept {
  int rank = kNoPeer;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  return rank;
}

/// `status` is what the process gives exit().
void at_process_exit(int status, void*) {
  const MpiState& state = mpi_state();
  // In a forked child MPI hangs, and it is the parent's.
  if (aborting_here || !state.owner.is_this_process()) return;
  if (state.aborting) {
    std::this_thread::sleep_for(kAbortTakes);
    std::_Exit(1);
  }
  if (state.abandoned) {
    flush_output();
    state.before_abort();
    abort_job(status);
  }
  if (!mpi_is_initialized() || mpi_is_finalized()) return;
  if (state.holders > 0) {
    log().critical(
        "{} exits without Context::shutdown(); its peers would wait for it, so the job is ended",
        to_string(identity_of_process(world_rank())));
    abort_job(status);
  }
  if (state.initialized_here) MPI_Finalize();
}

/// MPI_Finalize begins with the attributes of MPI_COMM_SELF (MPI 4.0, 11.2.4).
int at_finalize(MPI_Comm, int, void*, void*) {
  const MpiState& state = mpi_state();
  if (state.aborting) return MPI_SUCCESS;
  const char* when = nullptr;
  if (state.holders > 0) {
    when = "while hora runs (call Context::shutdown() first)";
  } else if (state.abandoned) {
    when = "after a hora::init that some ranks have not called";
  } else if (descriptors_are_gone()) {
    when = "after the program has closed all descriptors, those of MPI among them";
  }
  if (when == nullptr) return MPI_SUCCESS;
  log().critical("{} calls MPI_Finalize {}, which would never return, so the job is ended",
                 to_string(identity_of_process(world_rank())), when);
  abort_job(1);
}

void watch_finalize() {
  int key = MPI_KEYVAL_INVALID;
  mpi_check(MPI_Comm_create_keyval(MPI_COMM_NULL_COPY_FN, at_finalize, &key, nullptr),
            "MPI_Comm_create_keyval");
  mpi_check(MPI_Comm_set_attr(MPI_COMM_SELF, key, nullptr), "MPI_Comm_set_attr");
  mpi_check(MPI_Comm_free_keyval(&key), "MPI_Comm_free_keyval");
}

// The thread level in force.
int start_or_join_mpi(MpiState& state, int* argc, char*** argv) {
  int level = MPI_THREAD_SINGLE;
  if (mpi_is_initialized()) {
    mpi_check(MPI_Query_thread(&level), "MPI_Query_thread");
    return level;
  }
  mpi_check(MPI_Init_thread(argc, argv, MPI_THREAD_MULTIPLE, &level), "MPI_Init_thread");
  state.initialized_here = true;
  return level;
}

}  // namespace

std::string compiled_mpi() {
#if defined(OMPI_MAJOR_VERSION)
  return fmt::format("Open MPI {}.{}.{}", OMPI_MAJOR_VERSION, OMPI_MINOR_VERSION,
                     OMPI_RELEASE_VERSION);
#elif defined(MPICH_VERSION)
  return "MPICH " MPICH_VERSION;
#else
  return {};
#endif
}

std::string running_mpi() {
  std::array<char, MPI_MAX_LIBRARY_VERSION_STRING> text{};
  int length = 0;
  mpi_check(MPI_Get_library_version(text.data(), &length), "MPI_Get_library_version");
  std::string line(text.data(), static_cast<std::size_t>(length));
  line.resize(std::min(line.find('\n'), line.size()));
  line.resize(std::min(line.find(','), line.size()));
  // MPICH aligns its number by blanks.
  line.erase(
      std::unique(line.begin(), line.end(),
                  [](char a, char b) { return std::isspace(a) != 0 && std::isspace(b) != 0; }),
      line.end());
  std::ranges::replace(line, '\t', ' ');
  return line;
}

bool is_open_mpi_from(int major_version, std::string_view running) {
  return family_of(running) == Family::open_mpi && major_version_of(running) >= major_version;
}

// CMake says by which call this MPI reports it, if by any.
CudaSupport mpi_cuda_support() {
#if defined(HORA_MPI_HAS_MPIX_QUERY_CUDA_SUPPORT)  // Open MPI, and libraries with its extension
  return MPIX_Query_cuda_support() == 1 ? CudaSupport::yes : CudaSupport::no;
#elif defined(HORA_MPI_HAS_MPIX_GPU_QUERY_SUPPORT)  // MPICH 4, and libraries made from it
  int yes = 0;
  if (MPIX_GPU_query_support(MPIX_GPU_SUPPORT_CUDA, &yes) == MPI_SUCCESS) {
    return yes != 0 ? CudaSupport::yes : CudaSupport::no;
  }
#endif
  return CudaSupport::unknown;
}

std::optional<std::string> library_mismatch(std::string_view compiled, std::string_view running) {
  const Family wanted = family_of(compiled);
  const Family found = family_of(running);
  const bool known = wanted != Family::unknown && found != Family::unknown;
  const bool is_older = wanted == Family::open_mpi && found == Family::open_mpi &&
                        major_version_of(running) < major_version_of(compiled);
  if (!known || (wanted == found && !is_older)) return std::nullopt;
  return fmt::format(
      "hora was compiled for {}, but this process has loaded {}: their types differ behind equal "
      "names. Link the program with the MPI that hora was built with, and let LD_LIBRARY_PATH not "
      "lead to another",
      compiled, running);
}

std::optional<std::string> launcher_mismatch(int world_size, std::string_view library,
                                             const EnvironmentLookup& lookup) {
  if (auto older = older_mpirun(library, lookup)) return older;
  if (world_size != 1) return std::nullopt;
  for (const Launcher& launcher : kLaunchers) {
    const char* value = lookup(launcher.variable);
    if (value == nullptr) continue;
    const long processes = number_of(value);
    if (processes <= 1) return std::nullopt;
    const bool is_open_mpi = &launcher == kLaunchers;
    // srun starts ranks of a library by the PMI that it speaks.
    const bool is_slurm = launcher.name.starts_with("Slurm");
    return fmt::format(
        "{}{} started {} processes ({}={}), but MPI_COMM_WORLD has one: this program is linked "
        "with "
        "{}, to which the launcher does not belong. Start it with the mpirun of its own MPI "
        "library{}",
        launcher.name, is_open_mpi ? version_of_mpirun(lookup) : "", processes, launcher.variable,
        value, library, is_slurm ? ", or by srun --mpi=pmix (Open MPI) or --mpi=pmi2 (MPICH)" : "");
  }
  return std::nullopt;
}

MpiEnvironment::MpiEnvironment(int* argc, char*** argv) {
  MpiState& state = mpi_state();
  if (!state.owner.is_this_process()) {
    throw Error(ErrorCode::invalid_use,
                "this process was forked from one that uses MPI: it cannot use MPI itself, but can "
                "start a program of its own (exec)");
  }
  // First, for no other call of MPI is safe where the library is another one.
  if (const auto mismatch = library_mismatch(compiled_mpi(), running_mpi())) {
    throw Error(ErrorCode::transport, *mismatch);
  }
  if (mpi_is_finalized()) {
    throw Error(ErrorCode::transport,
                "MPI is finalised in this process and cannot start again: call hora::init before "
                "MPI_Finalize, or leave MPI_Init and MPI_Finalize to hora");
  }
  const int level = start_or_join_mpi(state, argc, argv);
  if (!state.exit_handler_registered) {
    // Registered after MPI has started, so it runs before the exit handlers of MPI's own parts.
    state.exit_handler_registered = ::on_exit(at_process_exit, nullptr) == 0;
    watch_finalize();
  }
  // MPI orders the levels' numbers.
  if (level < MPI_THREAD_SERIALIZED) {
    throw Error(ErrorCode::transport,
                fmt::format("MPI offers {}, hora needs MPI_THREAD_SERIALIZED or "
                            "MPI_THREAD_MULTIPLE: initialise MPI by MPI_Init_thread with one of "
                            "them, or leave it to hora::init",
                            thread_level_name(level)));
  }
  int world_size = 0;
  mpi_check(MPI_Comm_size(MPI_COMM_WORLD, &world_size), "MPI_Comm_size");
  if (const auto mismatch = launcher_mismatch(world_size, running_mpi(),
                                              [](const char* name) { return std::getenv(name); })) {
    throw Error(ErrorCode::transport, *mismatch);
  }
  thread_multiple_ = level == MPI_THREAD_MULTIPLE;
  held_ = true;
  ++state.holders;
}

MpiEnvironment::~MpiEnvironment() {
  release();
}

void MpiEnvironment::release() noexcept {
  if (held_) {
    held_ = false;
    --mpi_state().holders;
  }
}

void abandon_job() noexcept {
  mpi_state().abandoned = true;
}

void abort_job(int code) noexcept {
  const int exit_code = code == 0 ? 1 : code;
  if (mpi_state().aborting.exchange(true)) {
    std::this_thread::sleep_for(kAbortTakes);
    std::_Exit(exit_code);
  }
  aborting_here = true;
  flush_output();
  // Without its descriptors MPI_Abort does not return.
  if (mpi_is_initialized() && !mpi_is_finalized() && !descriptors_are_gone()) {
    std::this_thread::sleep_for(kForwardingTakes);
    MPI_Abort(MPI_COMM_WORLD, exit_code);
  }
  std::_Exit(exit_code);
}

void abandon_job(std::chrono::milliseconds grace, std::function<void()> first) {
  mpi_state().before_abort = std::move(first);
  abandon_job();
  std::thread([grace] {
    std::this_thread::sleep_for(grace);
    mpi_state().before_abort();
    abort_job(1);
  }).detach();
}

}  // namespace hora::internal
