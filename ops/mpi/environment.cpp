#include "ops/mpi/environment.h"

#include <hora/error.h>
#include <mpi.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>

#include "core/identity.h"
#include "core/process_owner.h"
#include "ops/mpi/check.h"
#include "ops/mpi/implementation.h"
#include "ops/mpi/launcher.h"

namespace hora {
namespace {

// MPI's state belongs to the process, so what we know about it does too.
struct ProcessState {
  ProcessOwner owner;
  std::atomic<int> holders{0};
  std::atomic<bool> aborting{false};
  std::atomic<bool> abandoned{false};
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
  if (state.abandoned) {
    abort_job(1);
  }
  if (state.initialized_here) {
    MPI_Finalize();
  }
}

/// MPI_Finalize begins with the attributes of MPI_COMM_SELF (MPI 4.0, 11.2.4).
int at_finalize(MPI_Comm, int, void*, void*) {
  const ProcessState& state = process_state();
  if (!state.aborting && (state.holders > 0 || state.abandoned)) {
    std::fprintf(stderr,
                 "hora: %s calls MPI_Finalize %s, which would wait for ever, so the job is "
                 "ended\n",
                 to_string(identity_of_process(world_rank())).c_str(),
                 state.holders > 0 ? "while hora runs (call Context::shutdown() first)"
                                   : "after a hora::init to which ranks have not come");
    abort_job(1);
  }
  return MPI_SUCCESS;
}

void watch_finalize() {
  int key = MPI_KEYVAL_INVALID;
  mpi_check(MPI_Comm_create_keyval(MPI_COMM_NULL_COPY_FN, at_finalize, &key, nullptr),
            "MPI_Comm_create_keyval");
  mpi_check(MPI_Comm_set_attr(MPI_COMM_SELF, key, nullptr), "MPI_Comm_set_attr");
  mpi_check(MPI_Comm_free_keyval(&key), "MPI_Comm_free_keyval");
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
    state.exit_handler_registered = std::atexit(at_process_exit) == 0;
    watch_finalize();
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
    --process_state().holders;
  }
}

void abandon_job() noexcept {
  process_state().abandoned = true;
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

}  // namespace hora
