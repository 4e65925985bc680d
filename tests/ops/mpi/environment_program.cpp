/// One use of MPI in a process each, for environment_test.sh; prints "done" where it succeeded.
#include <hora/error.h>
#include <mpi.h>

#include <cstdio>
#include <functional>
#include <map>
#include <string_view>

#include "ops/mpi/communicator.h"
#include "ops/mpi/environment.h"

namespace {

using hora::internal::Communicator;
using hora::internal::MpiBootstrap;
using hora::internal::MpiEnvironment;

void start_and_stop() {
  for (int round = 0; round < 3; ++round) {
    MpiEnvironment environment;
    MpiBootstrap(Communicator::world()).barrier();
    environment.release();
  }
}

/// Also after MPI_Finalize.
void joins_the_application(int required, bool finalized = false) {
  int provided = 0;
  MPI_Init_thread(nullptr, nullptr, required, &provided);
  if (finalized) MPI_Finalize();
  try {
    const MpiEnvironment environment;
    std::printf("multiple=%d\n", environment.thread_multiple() ? 1 : 0);
  } catch (const hora::Error& error) {
    std::printf("%s\n", error.what());
  }
  if (!finalized) MPI_Finalize();
}

// Rank 0 ends the job, the others wait for it.
void aborts() {
  const MpiEnvironment environment;
  MpiBootstrap world(Communicator::world());
  if (world.rank() == 0) hora::internal::abort_job(7);
  world.barrier();
}

}  // namespace

int main(int argc, char** argv) {
  const std::map<std::string_view, std::function<void()>> modes = {
      {"start-and-stop", start_and_stop},
      {"application-multiple", [] { joins_the_application(MPI_THREAD_MULTIPLE); }},
      {"application-funneled", [] { joins_the_application(MPI_THREAD_FUNNELED); }},
      {"after-finalize", [] { joins_the_application(MPI_THREAD_SINGLE, true); }},
      {"abort", aborts},
      {"start", [] { const MpiEnvironment environment; }},
      {"library", [] { std::puts(hora::internal::running_mpi().c_str()); }},
  };
  try {
    modes.at(argc > 1 ? argv[1] : "")();
  } catch (const hora::Error& error) {
    std::puts(error.what());
    return 3;
  }
  std::puts("done");
  return 0;
}
