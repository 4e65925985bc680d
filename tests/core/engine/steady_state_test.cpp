// The cost of a step once names are known: no allocation on any thread, no call of the system but
// to sleep, to wake and to yield, and no lock that a thread which submits has to wait for.
#include <dlfcn.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <pthread.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <barrier>
#include <csignal>

#include "tests/core/engine/engine_fixture.h"

namespace {

std::atomic<bool> counting{false};
std::atomic<long> allocations{0};

void* counted(std::size_t bytes) {
  if (counting.load(std::memory_order_relaxed)) allocations.fetch_add(1);
  if (void* const memory = std::malloc(bytes == 0 ? 1 : bytes)) return memory;
  throw std::bad_alloc();
}

/// True while a thread that trains submits.
thread_local bool submits = false;
std::atomic<long> locks{0};
std::atomic<long> contended{0};

using LockFunction = int (*)(pthread_mutex_t*);

LockFunction in_the_c_library(const char* name) {
  return reinterpret_cast<LockFunction>(::dlsym(RTLD_NEXT, name));
}

}  // namespace

// In place of the C library's, which std::mutex calls.
extern "C" int pthread_mutex_trylock(pthread_mutex_t* mutex) noexcept {
  static const LockFunction try_lock = in_the_c_library("pthread_mutex_trylock");
  const int result = try_lock(mutex);
  if (submits && result == 0) locks.fetch_add(1, std::memory_order_relaxed);
  return result;
}

extern "C" int pthread_mutex_lock(pthread_mutex_t* mutex) noexcept {
  static const LockFunction lock = in_the_c_library("pthread_mutex_lock");
  if (!submits) return lock(mutex);
  if (::pthread_mutex_trylock(mutex) == 0) return 0;
  contended.fetch_add(1, std::memory_order_relaxed);
  return lock(mutex);
}

// Those of arrays call these.
void* operator new(std::size_t bytes) {
  return counted(bytes);
}
void operator delete(void* memory) noexcept {
  std::free(memory);
}
void operator delete(void* memory, std::size_t) noexcept {
  std::free(memory);
}

namespace hora::internal {
namespace {

using namespace test;

constexpr int kRounds = 1000;

/// A step's requests of one rank: `names` of them, each of `count` elements.
class Step {
 public:
  Step(int names, std::size_t count) : values_(static_cast<std::size_t>(names)) {
    for (auto& values : values_) {
      names_.push_back("gradient.of.a.layer.with.a.long.name." + std::to_string(names_.size()));
      values.assign(count, 1.0F);
    }
    submissions_.reserve(names_.size());
  }
  /// A call's own arguments are its caller's: made before anything is counted.
  void prepare(int rounds) {
    requests_.clear();
    for (int r = 0; r < rounds; ++r) {
      for (std::size_t n = 0; n < names_.size(); ++n) {
        requests_.push_back(sum_of(values_[n], names_[n]));
      }
    }
    next_ = 0;
  }
  void one_by_one(Engine& engine) {
    for (std::size_t n = 0; n < names_.size(); ++n) {
      engine.submit_and_wait(std::move(requests_[next_++]));
    }
  }
  template <class Between>
  void all_at_once(Engine& engine, Between&& between) {
    for (std::size_t n = 0; n < names_.size(); ++n) {
      submits = true;
      submissions_.push_back(engine.submit(std::move(requests_[next_++])));
      submits = false;
      between();
    }
    for (const auto& submission : submissions_) engine.wait(*submission);
    submissions_.clear();
  }

 private:
  std::vector<std::string> names_;
  std::vector<std::vector<float>> values_;
  std::vector<Request> requests_;
  std::size_t next_ = 0;
  std::vector<std::shared_ptr<Operation>> submissions_;
};

/// Allocations of all threads of two ranks of one node, their engines' included, in kRounds steps.
template <class Round>
long allocations_of(int names, std::size_t count, Round&& round) {
  ThreadWorld world({.node_sizes = {2}, .settings = {}});
  std::barrier together(2);
  on_all_ranks(world, [&](int rank) {
    Step step(names, count);
    for (const bool counts : {false, true}) {
      step.prepare(kRounds);
      together.arrive_and_wait();
      if (rank == 0) allocations.store(0);
      if (rank == 0) counting.store(counts);
      together.arrive_and_wait();
      for (int r = 0; r < kRounds; ++r) round(step, world.engine(rank));
      together.arrive_and_wait();
      if (rank == 0) counting.store(false);
      together.arrive_and_wait();
    }
  });
  return allocations.load();
}

// A name's submission cannot be used again while the engine's thread, which has told its end, holds
// it still: then the name gets a second one, once. How many are decided together differs, too, so
// that lists may still grow. None of that grows with the number of steps.
constexpr int kMayGrow = 64;  // allocations of a name on a rank

TEST(SteadyState, OfBlockingCallsAndOfHandlesAllocatesNothing) {
  const auto blocking = [](Step& step, Engine& engine) { step.one_by_one(engine); };
  EXPECT_LE(allocations_of(1, 1, blocking), 2 * kMayGrow);
  EXPECT_LE(allocations_of(3, 200, blocking), 3 * 2 * kMayGrow);
  const auto handles = [](Step& step, Engine& engine) { step.all_at_once(engine, [] {}); };
  EXPECT_LE(allocations_of(8, 200, handles), 8 * 2 * kMayGrow);
}

// Others hold them for some instructions. As in backward there is some time between, in which the
// engine's thread works on what came before.
TEST(SteadyState, ASubmissionDoesNotWaitForALock) {
  constexpr int kNames = 512, kSteps = 40;
  constexpr long kSubmissions = long{kSteps} * kNames;
  locks.store(0);
  contended.store(0);
  ThreadWorld world({.node_sizes = {1}, .settings = {}});
  Step step(kNames, 200);
  step.prepare(kSteps);
  for (int r = 0; r < kSteps; ++r) {
    step.all_at_once(world.engine(0), [] {
      for (const auto until = now() + std::chrono::microseconds(2); now() < until;) continue;
    });
  }
  EXPECT_GT(locks.load(), kSubmissions) << "it takes some";
  EXPECT_LE(contended.load(), kSubmissions / 100);
}

/// From here on any call of the system but these ends this process, whichever of its threads makes
/// it, with the call's number as its exit code: seccomp(2).
void allow_only(const std::vector<long>& calls) {
  struct sigaction action {};
  action.sa_sigaction = [](int, siginfo_t* info, void*) { std::_Exit(info->si_syscall); };
  action.sa_flags = SA_SIGINFO;
  if (::sigaction(SIGSYS, &action, nullptr) != 0) std::_Exit(254);
  std::vector<sock_filter> filter{
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, static_cast<unsigned>(offsetof(seccomp_data, nr)))};
  for (const long call : calls) {
    filter.push_back(BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, static_cast<unsigned>(call), 0, 1));
    filter.push_back(BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW));
  }
  filter.push_back(BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_TRAP));
  const sock_fprog program{static_cast<unsigned short>(filter.size()), filter.data()};
  if (::prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0 ||
      ::syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, SECCOMP_FILTER_FLAG_TSYNC, &program) != 0) {
    std::_Exit(255);
  }
}

// futex: to sleep and to wake; sched_yield: while another thread computes; prctl: the timer's slack
// around a sleep of a thread that is not the engine's; clock_gettime: where the kernel's clock
// cannot be read without a call; the others: what grows, as above.
TEST(SteadyState, CallsTheSystemOnlyToSleepAndToWake) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  const auto steps = [] {
    ThreadWorld world({.node_sizes = {2}, .settings = {}});
    std::barrier together(2);
    on_all_ranks(world, [&](int rank) {
      Step step(3, 200);
      for (const bool filtered : {false, true}) {
        step.prepare(2 * kRounds);
        together.arrive_and_wait();
        if (filtered && rank == 0) {
          allow_only({SYS_futex, SYS_sched_yield, SYS_mmap, SYS_munmap, SYS_mprotect, SYS_brk,
                      SYS_madvise, SYS_clock_gettime, SYS_prctl, SYS_exit_group});
        }
        together.arrive_and_wait();
        for (int r = 0; r < kRounds; ++r) {
          step.one_by_one(world.engine(rank));
          step.all_at_once(world.engine(rank), [] {});
        }
        together.arrive_and_wait();
      }
      if (rank == 0) std::_Exit(0);
      together.arrive_and_wait();
    });
  };
  EXPECT_EXIT(steps(), testing::ExitedWithCode(0), "");
}

}  // namespace
}  // namespace hora::internal
