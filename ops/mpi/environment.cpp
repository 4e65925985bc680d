#include "ops/mpi/environment.h"

#include <hora/error.h>
#include <mpi.h>

#include <atomic>
#include <charconv>
#include <cstdio>
#include <cstdlib>
#include <string_view>

#include "core/process_owner.h"
#include "ops/mpi/check.h"

namespace hora {
namespace {

// MPI's state belongs to the process, so what we know about it does too.
struct ProcessState {
  ProcessOwner owner;
  std::atomic<int> holders{0};
  std::atomic<bool> aborting{false};
  bool exit_handler_registered = false;
  bool initialized_here = false;
};

ProcessState& process_state() {
  static ProcessState state;
  return state;
}

bool mpi_is_finalized() noexcept {
  int finalized = 0;
  return MPI_Finalized(&finalized) != MPI_SUCCESS || finalized != 0;
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

void at_process_exit() {
  const ProcessState& state = process_state();
  // In a forked child MPI hangs, and it is the parent's.
  if (!state.owner.is_this_process()) {
    return;
  }
  if (state.aborting || !mpi_is_initialized() || mpi_is_finalized()) {
    return;
  }
  if (state.holders > 0) {
    std::fprintf(stderr,
                 "hora: rank %d exits without Context::shutdown(); its peers would wait for it, so "
                 "the job is ended\n",
                 world_rank());
    abort_job(1);
  }
  if (state.initialized_here) {
    MPI_Finalize();
  }
}

// The thread level in force.
int start_or_join_mpi(ProcessState& state, int* argc, char*** argv) {
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

MpiEnvironment::MpiEnvironment(int* argc, char*** argv) {
  ProcessState& state = process_state();
  if (!state.owner.is_this_process()) {
    throw Error(ErrorCode::invalid_use,
                "this process was forked from one that uses MPI: it cannot use MPI itself, but can "
                "start a program of its own (exec)");
  }
  if (mpi_is_finalized()) {
    throw Error(ErrorCode::transport,
                "MPI is finalised in this process and cannot start again: call hora::init before "
                "MPI_Finalize, or leave MPI_Init and MPI_Finalize to hora");
  }
  const int level = start_or_join_mpi(state, argc, argv);
  if (!state.exit_handler_registered) {
    // Registered after MPI has started, so it runs before the exit handlers of MPI's own parts.
    state.exit_handler_registered = std::atexit(at_process_exit) == 0;
  }
  // MPI orders the levels' numbers.
  if (level < MPI_THREAD_SERIALIZED) {
    throw Error(ErrorCode::transport,
                "MPI offers " + mpi_thread_level_name(level) +
                    ", hora needs MPI_THREAD_SERIALIZED or MPI_THREAD_MULTIPLE: initialise MPI by "
                    "MPI_Init_thread with one of them, or leave it to hora::init");
  }
  int world_size = 0;
  mpi_check(MPI_Comm_size(MPI_COMM_WORLD, &world_size), "MPI_Comm_size");
  if (const auto mismatch =
          launcher_mismatch(world_size, [](const char* name) { return std::getenv(name); })) {
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
    --process_state().holders;
  }
}

void abort_job(int code) noexcept {
  process_state().aborting = true;
  const int exit_code = code == 0 ? 1 : code;
  std::fflush(stderr);
  if (mpi_is_initialized() && !mpi_is_finalized()) {
    MPI_Abort(MPI_COMM_WORLD, exit_code);
  }
  std::_Exit(exit_code);
}

std::optional<std::string> launcher_mismatch(int world_size, const EnvironmentLookup& lookup) {
  if (world_size != 1) {
    return std::nullopt;
  }
  // The innermost launcher's word counts: mpirun inside a Slurm step sets both. Slurm's number is
  // the step's (SLURM_NTASKS is the job's, and set in a batch script that srun has not started).
  struct Launcher {
    const char* variable;
    std::string_view name;
  };
  constexpr Launcher launchers[] = {{"OMPI_COMM_WORLD_SIZE", "Open MPI's mpirun"},
                                    {"PMI_SIZE", "a PMI launcher (MPICH's or Intel's mpiexec)"},
                                    {"SLURM_STEP_NUM_TASKS", "Slurm's srun"}};
  for (const Launcher& launcher : launchers) {
    const char* value = lookup(launcher.variable);
    if (value == nullptr) {
      continue;
    }
    const std::string_view digits(value);
    long processes = 0;
    const auto [end, error] =
        std::from_chars(digits.data(), digits.data() + digits.size(), processes);
    const bool is_number = error == std::errc() && end == digits.data() + digits.size();
    if (!is_number || processes <= 1) {
      return std::nullopt;
    }
    return std::string(launcher.name) + " started " + std::to_string(processes) + " processes (" +
           launcher.variable + "=" + value +
           "), but MPI_COMM_WORLD has one: the launcher and the MPI library that this program is "
           "linked with do not belong together. Start it with the mpirun of its own MPI library" +
           (launcher.name.starts_with("Slurm") ? ", or srun --mpi=pmix" : "");
  }
  return std::nullopt;
}

}  // namespace hora
