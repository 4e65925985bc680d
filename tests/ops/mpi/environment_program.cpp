/// One use of MPI in a process each, for environment_test.sh; prints "done" where it succeeded.
#include <hora/error.h>
#include <mpi.h>

#include <cstdio>
#include <string_view>

#include "ops/mpi/communicator.h"
#include "ops/mpi/environment.h"

namespace {

int done() {
  std::puts("done");
  return 0;
}

int start_and_stop() {
  for (int round = 0; round < 3; ++round) {
    hora::internal::MpiEnvironment environment;
    hora::internal::MpiBootstrap(hora::internal::Communicator::world()).barrier();
    environment.release();
  }
  return done();
}

int joins_the_application(int required) {
  int provided = 0;
  MPI_Init_thread(nullptr, nullptr, required, &provided);
  try {
    hora::internal::MpiEnvironment environment;
    std::printf("multiple=%d\n", environment.thread_multiple() ? 1 : 0);
  } catch (const hora::Error& error) {
    std::printf("%s\n", error.what());
  }
  MPI_Finalize();
  return done();
}

int after_finalize() {
  MPI_Init(nullptr, nullptr);
  MPI_Finalize();
  try {
    hora::internal::MpiEnvironment environment;
  } catch (const hora::Error& error) {
    std::printf("%s\n", error.what());
  }
  return done();
}

// Rank 0 ends the job, the others wait for it.
int aborts() {
  const hora::internal::MpiEnvironment environment;
  hora::internal::MpiBootstrap world(hora::internal::Communicator::world());
  if (world.rank() == 0) hora::internal::abort_job(7);
  world.barrier();
  return done();
}

int library() {
  std::printf("%s\n", hora::internal::running_mpi().c_str());
  return 0;
}

int starts() {
  try {
    hora::internal::MpiEnvironment environment;
  } catch (const hora::Error& error) {
    std::printf("%s\n", error.what());
    return 3;
  }
  return done();
}

}  // namespace

int main(int argc, char** argv) {
  const std::string_view mode = argc > 1 ? argv[1] : "";
  if (mode == "start-and-stop") return start_and_stop();
  if (mode == "application-multiple") return joins_the_application(MPI_THREAD_MULTIPLE);
  if (mode == "application-funneled") return joins_the_application(MPI_THREAD_FUNNELED);
  if (mode == "after-finalize") return after_finalize();
  if (mode == "abort") return aborts();
  if (mode == "start") return starts();
  if (mode == "library") return library();
  std::fprintf(stderr, "unknown mode\n");
  return 2;
}
