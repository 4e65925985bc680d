/// One use of MPI in a process each, for environment_test.sh; prints "done" where it succeeded.
#include <hora/error.h>
#include <mpi.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <memory>
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

// Rank 0 leaves, the others wait for it.
int leaves(bool by_abort) {
  const hora::internal::MpiEnvironment environment;
  hora::internal::MpiBootstrap world(hora::internal::Communicator::world());
  if (world.rank() == 0) {
    if (by_abort) hora::internal::abort_job(7);
    std::exit(0);
  }
  world.barrier();
  return done();
}

// Rank 0 forks a child that tries to use MPI and then exits; the others wait for rank 0.
int forks() {
  hora::internal::MpiEnvironment environment;
  hora::internal::MpiBootstrap world(hora::internal::Communicator::world());
  if (world.rank() == 0) {
    std::fflush(stdout);
    const pid_t child = ::fork();
    if (child == 0) {
      try {
        const hora::internal::MpiEnvironment second;
      } catch (const hora::Error& error) {
        std::printf("%s\n", error.what());
      }
      std::exit(5);
    }
    int status = 0;
    ::waitpid(child, &status, 0);
    std::printf("the child's exit code is %d\n", WIFEXITED(status) ? WEXITSTATUS(status) : -1);
  }
  world.barrier();
  environment.release();
  return done();
}

// Rank 0 ends MPI, the others wait for it.
int finalizes() {
  const hora::internal::MpiEnvironment environment;
  hora::internal::MpiBootstrap world(hora::internal::Communicator::world());
  if (world.rank() == 0) MPI_Finalize();
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
  if (mode == "exit") return leaves(false);
  if (mode == "abort") return leaves(true);
  if (mode == "fork") return forks();
  if (mode == "start") return starts();
  if (mode == "finalize") return finalizes();
  if (mode == "library") return library();
  std::fprintf(stderr, "unknown mode\n");
  return 2;
}
