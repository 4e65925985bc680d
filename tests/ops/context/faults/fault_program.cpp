// One fault a run, for faults_test.sh: what the other ranks see of it.
#include <hora/hora.h>
#include <mpi.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <csignal>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <map>
#include <optional>
#include <sstream>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace {

using namespace std::chrono_literals;

/// One line at once, so that lines of several ranks do not mix.
void say(const std::string& text) {
  std::printf("%s\n", text.c_str());
  std::fflush(stdout);
}
void say(const hora::Context& world, const std::string& text) {
  say("rank " + std::to_string(world.rank()) + ": " + text);
}
std::string code_of(const hora::Error& error) {
  return std::string(name_of(error.code()));
}
std::string text_of(const hora::Error& error) {
  return code_of(error) + ": " + error.what();
}

hora::Handle submit(const hora::Context& world, std::vector<float>& values,
                    const std::string& name) {
  return hora::allreduce_async(world, hora::view(values), {.name = name});
}

/// So many averages under one name, each waited for.
void average(const hora::Context& world, const std::string& name = "g", int rounds = 1,
             std::chrono::milliseconds timeout = 0ms) {
  std::vector<float> values(100, 1.0F);
  for (int i = 0; i < rounds; ++i) {
    hora::allreduce(world, hora::view(values), {.name = name, .timeout = timeout});
  }
}

/// Runs it; an error is printed, and has an exit code of its own.
int said(const std::function<void()>& run) {
  try {
    run();
    return 0;
  } catch (const hora::Error& error) {
    say(text_of(error));
    return 3;
  }
}

/// These ranks submit "late" later by `delay`; before that, `known` times together.
int late(int known, std::chrono::milliseconds delay, const std::vector<int>& ranks) {
  const hora::Context world = hora::init();
  average(world, "late", known);
  if (std::ranges::count(ranks, world.rank()) > 0) std::this_thread::sleep_for(delay);
  average(world, "late");
  say(world, "done");
  return 0;
}

/// Rank 0 alone submits "own"; all shut down. `fate`: what the handle ends as.
int never_completes(const std::string& fate) {
  hora::Context world = hora::init();
  std::vector<float> values(100, 1.0F);
  hora::Handle handle;
  if (world.rank() == 0) handle = submit(world, values, "own");
  MPI_Barrier(MPI_COMM_WORLD);  // no rank shuts down before it is submitted
  if (fate == "dropped") handle = {};
  while (fate == "failed" && handle.valid() && !handle.ready()) std::this_thread::sleep_for(1ms);
  if (fate == "waited" && handle.valid()) said([&] { handle.wait(); });
  world.shutdown();
  say(world, "end of main");
  return 0;
}

/// Rank 0 submits "x" to set 1, of all ranks, the others to the world; later each to the other set.
int crossed(std::chrono::milliseconds delay) {
  const hora::Context world = hora::init();
  const hora::ProcessSet set = hora::add_process_set(world, hora::ranks_of(world, hora::kWorld));
  std::vector<float> first(100, 1.0F), second(100, 1.0F);
  const auto submit_to = [&](std::vector<float>& values, bool of_set) {
    return hora::allreduce_async(world, hora::view(values),
                                 {.name = "x", .process_set = of_set ? set : hora::kWorld});
  };
  hora::Handle one = submit_to(first, world.rank() == 0);
  std::this_thread::sleep_for(delay);
  hora::Handle other = submit_to(second, world.rank() != 0);
  one.wait();
  other.wait();
  say(world, first[0] == 1.0F && second[0] == 1.0F ? "right" : "wrong");
  return 0;
}

void throw_with_open_handles(const hora::Context& world, int thrower, bool is_ours) {
  std::vector<float> own(1000, 1.0F);
  std::vector<float> other(1000, 1.0F);
  hora::Handle first = submit(world, own, "first");
  hora::Handle second = submit(world, other, "second");
  if (world.rank() == thrower) {
    if (is_ours) throw hora::Error(hora::ErrorCode::invalid_use, "an error of hora's");
    throw std::runtime_error("the application's own error");
  }
  first.wait();
  second.wait();
  // The thrower never submits it.
  submit(world, own, "third").wait();
  say(world, "third is complete");
}

/// Behaviour of main's catch clause.
enum class Catch { prints, is_silent, goes_on };

int caught_in_main(int thrower, Catch how) {
  try {
    const hora::Context world = hora::init();
    throw_with_open_handles(world, thrower, how == Catch::is_silent);
    return 0;
  } catch (const std::exception& error) {
    // Stays in the buffer until the process ends.
    if (how != Catch::is_silent) std::printf("caught: %s\n", error.what());
    if (how == Catch::goes_on) std::this_thread::sleep_for(1min);
    return 0;  // not even a caught exception makes the job a success
  }
}

int uncaught(int thrower) {
  const hora::Context world = hora::init();
  throw_with_open_handles(world, thrower, false);
  return 0;
}

int init_only(const hora::InitOptions& options = {}) {
  return said([&] {
    const hora::Context world = hora::init(options);
    say(world, "started");
  });
}

/// MPI, started by the application, and this process's rank in it.
int start_mpi() {
  int provided = 0, rank = 0;
  MPI_Init_thread(nullptr, nullptr, MPI_THREAD_MULTIPLE, &provided);
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  return rank;
}

/// Rank 1 calls init late by `delay`, or not at all where there is none.
int init_late(std::chrono::milliseconds delay) {
  const bool is_odd = start_mpi() == 1;
  if (is_odd) std::this_thread::sleep_for(delay);
  const int code = is_odd && delay == 0ms ? 0 : init_only();
  MPI_Finalize();
  return code;
}

std::vector<int> numbers_of(const std::string& list) {
  std::vector<int> numbers;
  std::istringstream words(list);
  for (std::string word; std::getline(words, word, ',');) numbers.push_back(std::stoi(word));
  return numbers;
}

/// Each rank with the list of ranks that is given for it, such as "0,1"; then all.
int init_lists(char** lists) {
  const int code = init_only({.ranks = numbers_of(lists[start_mpi()])});
  init_only();
  MPI_Finalize();
  return code;
}

/// Rank 1 ends by a call, which may return, between two averages.
int ends(const std::function<void()>& end) {
  const hora::Context world = hora::init();
  average(world);
  if (world.rank() == 1) end();
  average(world);
  say(world, "no error");
  return 0;
}

/// Rank 1 stops submitting; the others wait for it, up to this long where it is not 0.
int stops_submitting(std::chrono::milliseconds timeout) {
  return said([&] {
    const hora::Context world = hora::init();
    average(world);
    if (world.rank() == 1) std::this_thread::sleep_for(1min);
    average(world, "g", 1, timeout);
    say(world, "no error");
  });
}

/// Rank 1 stops submitting; rank 0 returns after its timeout, which it has caught.
int returns_early() {
  const hora::Context world = hora::init();
  if (world.rank() == 1) std::this_thread::sleep_for(1min);
  try {
    average(world, "g", 1, 500ms);
  } catch (const hora::Error&) {
  }
  return 0;
}

/// The last rank forks while a collective is under way that its peers complete later. The child
/// drops all that it has of hora: the context as well, by leaving its scope.
int forks() {
  pid_t child = -1;
  std::vector<float> values(100, 1.0F), unused(100, 1.0F);
  {
    std::optional<hora::Context> world(hora::init());
    const bool forks = world->rank() == world->size() - 1;
    average(*world);
    hora::Buffer buffer(*world, 1000);
    hora::Handle handle;
    hora::ResultHandle gathered;
    const auto begin = [&] {
      handle = submit(*world, values, "h");
      gathered = hora::allgather_async(*world, hora::view(unused));
    };
    if (forks) {
      begin();
      child = ::fork();
    }
    if (child != 0) {
      int status = 0;
      if (forks) ::waitpid(child, &status, 0);
      hora::barrier(*world);
      if (!forks) begin();
      handle.wait();
      gathered.wait();
      hora::barrier(*world);
      if (forks) {
        say(*world, "the child's exit code is " +
                        std::to_string(WIFEXITED(status) ? WEXITSTATUS(status) : -1));
      }
      say(*world, "went on");
      return 0;
    }
    const auto try_it = [&](const std::string& what, const std::function<void()>& call) {
      std::string code = "no error";
      try {
        call();
      } catch (const hora::Error& error) {
        code = code_of(error);
      }
      say(*world, what + " in the child: " + code);
    };
    try_it("submit", [&] { submit(*world, unused, "c"); });
    try_it("wait", [&] { handle.wait(); });
    try_it("buffer", [&] { hora::Buffer(*world, 10); });
    try_it("shutdown", [&] { world->shutdown(); });
  }
  return 7;
}

constexpr std::int64_t kElements = 5000;

hora::Buffer filled(const hora::Context& world, float value) {
  hora::Buffer buffer(world, kElements * sizeof(float));
  std::fill_n(reinterpret_cast<float*>(buffer.data()), kElements, value);
  return buffer;
}

hora::TensorView floats_of(const hora::Buffer& buffer) {
  return hora::view(reinterpret_cast<float*>(buffer.data()), kElements);
}

/// Drops handles of every kind, on memory of every kind, which the exception frees.
[[noreturn]] void throw_with_everything_open(const hora::Context& world,
                                             const hora::Result& gathered) {
  const auto ranks = static_cast<std::size_t>(world.size());
  std::vector<float> own(1000 * ranks, 1.0F), other(1000 * ranks, 1.0F);
  const hora::Buffer buffer = filled(world, 1.0F);
  const hora::Result received = gathered;
  const std::vector<hora::TensorView> group{hora::view(own), hora::view(other)};
  const hora::Handle in_own = hora::allreduce_async(world, hora::view(own), {.name = "own"});
  const hora::Handle in_buffer = hora::allreduce_async(world, floats_of(buffer), {.name = "b"});
  const hora::Handle in_result = hora::allreduce_async(world, received.view(), {.name = "result"});
  const hora::ResultHandle all = hora::allgather_async(world, hora::view(other), {.name = "all"});
  const hora::GroupHandle reduced = hora::grouped_allreduce_async(world, group, {.name = "r"});
  const hora::ResultGroupHandle exchanged =
      hora::grouped_alltoall_async(world, group, {.name = "e"});
  throw std::runtime_error("the application's own error");
}

void catch_with_everything_open(const hora::Context& world, hora::Result gathered) {
  try {
    const hora::Result last = std::move(gathered);
    throw_with_everything_open(world, last);
  } catch (const std::runtime_error&) {
  }
}

/// All ranks throw and catch while the context lives, one of them before the others submit the
/// same; what it then allocates is its own.
int catch_inside() {
  hora::Context world = hora::init();
  bool right = true;
  for (int first = 0; first < world.size(); ++first) {
    const std::vector<float> part(kElements / static_cast<std::size_t>(world.size()), 1.0F);
    hora::Result gathered = hora::allgather(world, hora::view(part), {.name = "gathered"});
    std::vector<hora::Buffer> allocated;
    if (world.rank() == first) {
      catch_with_everything_open(world, std::move(gathered));
      for (int i = 0; i < 8; ++i) allocated.push_back(filled(world, 7.0F));
    }
    MPI_Barrier(MPI_COMM_WORLD);
    if (world.rank() != first) catch_with_everything_open(world, std::move(gathered));
    std::vector<float> values(100, 1.0F);
    hora::allreduce(world, hora::view(values), {.name = "next", .op = hora::ReduceOp::sum});
    right = right && values.back() == static_cast<float>(world.size());
    for (const hora::Buffer& buffer : allocated) {
      const auto* const begin = reinterpret_cast<const float*>(buffer.data());
      right = right && std::all_of(begin, begin + kElements, [](float v) { return v == 7.0F; });
    }
  }
  world.shutdown();
  say(world, right ? "went on" : "wrong values");
  return 0;
}

using Values = std::vector<std::uint8_t>;

/// By the kernel, for another thread writes it.
bool has_begun(const Values& values) {
  std::uint8_t first = 0;
  iovec here{&first, 1};
  iovec there{const_cast<std::uint8_t*>(values.data()), 1};
  return ::process_vm_readv(::getpid(), &here, 1, &there, 1, 0) == 1 && first != 0;
}

/// Whether the memory of a call that has failed stays as it is while messages go on.
bool is_left_alone(Values& values, pid_t root) {
  std::fill(values.begin(), values.end(), std::uint8_t{0x5a});
  ::kill(root, SIGCONT);
  const auto end = std::chrono::steady_clock::now() + 500ms;
  while (std::chrono::steady_clock::now() < end) {
    int flag = 0;
    MPI_Iprobe(MPI_ANY_SOURCE, MPI_ANY_TAG, MPI_COMM_WORLD, &flag, MPI_STATUS_IGNORE);
  }
  // Whole memory at once: a loop over bytes takes seconds where it is not optimised.
  return values.front() == 0x5a &&
         std::memcmp(values.data(), values.data() + 1, values.size() - 1) == 0;
}

/// Rank 0 is stopped as soon as the first bytes of what it broadcasts have come to rank 1, on
/// another node, which then runs out of time. Rank 1 uses the memory for something else once it has
/// the error, lets rank 0 go on, and says whether the memory is left alone.
int cut_broadcast() {
  const hora::Context world = hora::init();
  pid_t root = ::getpid();
  MPI_Bcast(&root, sizeof root, MPI_BYTE, 0, MPI_COMM_WORLD);
  Values values(std::size_t{256} << 20, static_cast<std::uint8_t>(world.rank() == 0 ? 1 : 0));
  std::atomic<bool> is_over{false};
  std::jthread stopper;
  if (world.rank() == 1) {
    stopper = std::jthread([&] {
      while (!has_begun(values) && !is_over.load()) std::this_thread::yield();
      ::kill(root, SIGSTOP);
    });
  }
  try {
    hora::broadcast(world, hora::view(values.data(), static_cast<std::int64_t>(values.size())),
                    {.name = "weights", .root = 0});
    is_over.store(true);
    if (world.rank() == 1) ::kill(root, SIGCONT);
    say(world, "no error");
    return 0;
  } catch (const hora::Error& error) {
    is_over.store(true);
    say(world, text_of(error));
    if (world.rank() == 1) {
      say(world,
          is_left_alone(values, root) ? "the memory is left alone" : "the memory is written to");
    }
    std::this_thread::sleep_for(500ms);  // for the other to say its own
    return 3;
  }
}

}  // namespace

int main(int argc, char** argv) {
  const std::string mode = argc > 1 ? argv[1] : "";
  const std::string argument = argc > 2 ? argv[2] : "";
  const int number = std::atoi(argument.c_str());
  const std::chrono::milliseconds time(number);
  const std::map<std::string, std::function<int()>> faults = {
      {"late", [&] { return late(number, std::stoi(argv[3]) * 1ms, numbers_of(argv[4])); }},
      {"never-completes", [&] { return never_completes(argument); }},
      {"crossed", [&] { return crossed(time); }},
      {"throw-caught", [&] { return caught_in_main(number, Catch::prints); }},
      {"throw-silent", [&] { return caught_in_main(number, Catch::is_silent); }},
      {"throw-goes-on", [&] { return caught_in_main(number, Catch::goes_on); }},
      {"throw-uncaught", [&] { return uncaught(number); }},
      {"throw-inside", catch_inside},
      {"init", [] { return init_only(); }},
      {"init-late", [&] { return init_late(time); }},
      {"init-lists", [&] { return init_lists(argv + 2); }},
      {"finalize",
       [] {
         start_mpi();
         return ends(MPI_Finalize);
       }},
      {"stops-submitting", [&] { return stops_submitting(time); }},
      {"returns-early", returns_early},
      {"cut-broadcast", cut_broadcast},
      {"exit", [&] { return ends([&] { std::exit(number); }); }},
      {"fork", forks},
  };
  return faults.at(mode)();
}
