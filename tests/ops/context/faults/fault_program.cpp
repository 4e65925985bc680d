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
#include <optional>
#include <sstream>
#include <stdexcept>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

namespace {

using namespace std::chrono_literals;

/// One line at once, so that lines of several ranks do not mix.
void say(const hora::Context& world, const std::string& text) {
  std::printf("%s\n", ("rank " + std::to_string(world.rank()) + ": " + text).c_str());
  std::fflush(stdout);
}

hora::Handle submit(const hora::Context& world, std::vector<float>& values,
                    const std::string& name) {
  return hora::allreduce_async(
      world, hora::view(values.data(), static_cast<std::int64_t>(values.size())), {.name = name});
}

/// These ranks submit "late" later by `delay`; before that, `known` times together.
int late(int argc, char** argv) {
  const hora::Context world = hora::init();
  const int known = std::stoi(argv[2]);
  const std::chrono::milliseconds delay(std::stoi(argv[3]));
  std::vector<float> values(100, 1.0F);
  for (int i = 0; i < known; ++i) submit(world, values, "late").wait();
  for (int i = 4; i < argc; ++i) {
    if (std::stoi(argv[i]) == world.rank()) std::this_thread::sleep_for(delay);
  }
  submit(world, values, "late").wait();
  say(world, "done");
  return 0;
}

/// The last rank submits seven tensors late by `milliseconds`.
int late_to_many(int milliseconds) {
  const hora::Context world = hora::init();
  constexpr int kTensors = 7;
  std::vector<std::vector<float>> values(kTensors, std::vector<float>(100, 1.0F));
  if (world.rank() + 1 == world.size()) {
    std::this_thread::sleep_for(std::chrono::milliseconds(milliseconds));
  }
  std::vector<hora::Handle> handles;
  for (int i = 0; i < kTensors; ++i) {
    handles.push_back(
        submit(world, values[static_cast<std::size_t>(i)], "late" + std::to_string(i)));
  }
  for (hora::Handle& handle : handles) handle.wait();
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
  if (fate == "failed") {
    while (handle.valid() && !handle.ready()) std::this_thread::sleep_for(1ms);
  }
  if (fate == "waited") {
    try {
      if (handle.valid()) handle.wait();
    } catch (const hora::Error& error) {
      say(world, error.what());
    }
  }
  world.shutdown();
  say(world, "end of main");
  return 0;
}

/// Rank 0 submits "x" to set 1, of all ranks, the others to the world; later each to the other set.
int crossed(int milliseconds) {
  const hora::Context world = hora::init();
  std::vector<int> all;
  for (int r = 0; r < world.size(); ++r) all.push_back(r);
  const hora::ProcessSet set = hora::add_process_set(world, all);
  std::vector<float> first(100, 1.0F), second(100, 1.0F);
  const auto submit_to = [&](std::vector<float>& values, bool of_set) {
    return hora::allreduce_async(world, hora::view(values.data(), 100),
                                 {.name = "x", .process_set = of_set ? set : hora::kWorld});
  };
  hora::Handle one = submit_to(first, world.rank() == 0);
  std::this_thread::sleep_for(std::chrono::milliseconds(milliseconds));
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
  try {
    const hora::Context world = hora::init(options);
    say(world, "started");
    return 0;
  } catch (const hora::Error& error) {
    const std::string code(name_of(error.code()));
    std::printf("%s\n", (code + ": " + error.what()).c_str());
    std::fflush(stdout);
    return 3;
  }
}

/// MPI, started by the application, and this process's rank in it.
int start_mpi() {
  int provided = 0, rank = 0;
  MPI_Init_thread(nullptr, nullptr, MPI_THREAD_MULTIPLE, &provided);
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  return rank;
}

/// Rank 1 calls init late, by `milliseconds`.
int init_late(int milliseconds) {
  if (start_mpi() == 1) std::this_thread::sleep_for(std::chrono::milliseconds(milliseconds));
  const int code = init_only();
  MPI_Finalize();
  return code;
}

/// Rank 1 returns before init.
int init_left() {
  const int code = start_mpi() == 1 ? 0 : init_only();
  MPI_Finalize();
  return code;
}

/// Each rank with the list of ranks that is given for it, such as "0,1"; then all.
int init_lists(char** lists) {
  const int rank = start_mpi();
  std::vector<int> ranks;
  std::istringstream list(lists[rank]);
  for (std::string word; std::getline(list, word, ',');) ranks.push_back(std::stoi(word));
  const int code = init_only({.ranks = ranks});
  init_only();
  MPI_Finalize();
  return code;
}

/// Rank 1 calls MPI_Finalize while hora runs.
int finalizes() {
  const int rank = start_mpi();
  const hora::Context world = hora::init();
  std::vector<float> values(100, 1.0F);
  submit(world, values, "g").wait();
  if (rank == 1) MPI_Finalize();
  submit(world, values, "g").wait();
  say(world, "no error");
  return 0;
}

/// Rank 0 leaves; the others wait for what it has not submitted, known or new.
int shutdown_early(int known) {
  hora::Context world = hora::init();
  std::vector<float> values(100, 1.0F);
  for (int i = 0; i < known; ++i) submit(world, values, "g").wait();
  const auto begin = std::chrono::steady_clock::now();
  if (world.rank() == 0) {
    std::this_thread::sleep_for(200ms);
    world.shutdown();
    say(world, "left");
    return 0;
  }
  try {
    submit(world, values, "g").wait();
    say(world, "no error");
  } catch (const hora::Error& error) {
    const auto waited = std::chrono::duration_cast<std::chrono::milliseconds>(
        std::chrono::steady_clock::now() - begin);
    const bool in_time = waited < 200ms + 1s;
    say(world, std::string(name_of(error.code())) + (in_time ? " in time: " : " too late: ") +
                   error.what());
  }
  world.shutdown();
  return 0;
}

/// The last rank leaves by exit(code), or is killed.
int ends(const std::function<void()>& end) {
  const hora::Context world = hora::init();
  std::vector<float> values(100, 1.0F);
  submit(world, values, "g").wait();
  if (world.rank() == world.size() - 1) end();
  submit(world, values, "g").wait();
  say(world, "no error");
  return 0;
}

/// Rank 1 stops submitting; the others wait for it, up to this long where it is not 0.
int stops_submitting(std::chrono::milliseconds timeout) {
  try {
    const hora::Context world = hora::init();
    std::vector<float> values(100, 1.0F);
    submit(world, values, "g").wait();
    if (world.rank() == 1) std::this_thread::sleep_for(1min);
    hora::allreduce(world, hora::view(values), {.name = "g", .timeout = timeout});
    say(world, "no error");
    return 0;
  } catch (const hora::Error& error) {
    std::printf("%s\n", (std::string(name_of(error.code())) + ": " + error.what()).c_str());
    return 3;
  }
}

/// Rank 1 stops submitting; rank 0 returns after its timeout, which it has caught.
int returns_early() {
  const hora::Context world = hora::init();
  std::vector<float> values(100, 1.0F);
  if (world.rank() == 1) std::this_thread::sleep_for(1min);
  try {
    hora::allreduce(world, hora::view(values), {.name = "g", .timeout = 500ms});
  } catch (const hora::Error&) {
  }
  return 0;
}

/// This rank stops itself before it submits what the others wait for, or after.
int stopped(int rank, bool after) {
  try {
    const hora::Context world = hora::init();
    std::vector<float> values(100, 1.0F);
    for (int i = 0; i < 3; ++i) submit(world, values, "g").wait();
    const bool stops = world.rank() == rank;
    if (stops && !after) std::raise(SIGSTOP);
    if (!stops && after) std::this_thread::sleep_for(500ms);
    hora::Handle handle = submit(world, values, "g");
    if (stops && after) std::raise(SIGSTOP);
    handle.wait();
    say(world, "no error");
    return 0;
  } catch (const hora::Error& error) {
    std::printf("%s\n", (std::string(name_of(error.code())) + ": " + error.what()).c_str());
    std::fflush(stdout);
    std::this_thread::sleep_for(500ms);  // for the others to say theirs
    return 3;
  }
}

std::string code_of(const std::function<void()>& call) {
  try {
    call();
    return "no error";
  } catch (const hora::Error& error) {
    return std::string(name_of(error.code()));
  }
}

/// The last rank forks while a collective is under way that its peers complete later. The child
/// drops all that it has of hora: the context as well, by leaving its scope.
int forks() {
  pid_t child = -1;
  std::vector<float> values(100, 1.0F), unused(100, 1.0F);
  {
    std::optional<hora::Context> world(hora::init());
    const bool forks = world->rank() == world->size() - 1;
    submit(*world, values, "g").wait();
    hora::Buffer buffer(*world, 1000);
    hora::Handle handle;
    hora::ResultHandle gathered;
    if (forks) {
      handle = submit(*world, values, "h");
      gathered = hora::allgather_async(*world, hora::view(unused.data(), 100));
      child = ::fork();
    }
    if (child != 0) {
      std::optional<int> status;
      if (forks) ::waitpid(child, &status.emplace(), 0);
      hora::barrier(*world);
      if (!forks) {
        handle = submit(*world, values, "h");
        gathered = hora::allgather_async(*world, hora::view(unused.data(), 100));
      }
      handle.wait();
      gathered.wait();
      hora::barrier(*world);
      if (status) {
        say(*world, "the child's exit code is " +
                        std::to_string(WIFEXITED(*status) ? WEXITSTATUS(*status) : -1));
      }
      say(*world, "went on");
      return 0;
    }
    say(*world, "submit in the child: " + code_of([&] { submit(*world, unused, "c"); }));
    say(*world, "wait in the child: " + code_of([&] { handle.wait(); }));
    say(*world, "buffer in the child: " + code_of([&] { hora::Buffer(*world, 10); }));
    say(*world, "shutdown in the child: " + code_of([&] { world->shutdown(); }));
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
  std::printf("rank %d: %s\n", world.rank(), right ? "went on" : "wrong values");
  std::fflush(stdout);
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
    say(world, std::string(name_of(error.code())) + ": " + error.what());
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
  const std::string_view mode = argc > 1 ? argv[1] : "";
  const int number = argc > 2 ? std::atoi(argv[2]) : 0;
  if (mode == "late" && argc > 3) return late(argc, argv);
  if (mode == "late-to-many") return late_to_many(number);
  if (mode == "never-completes" && argc > 2) return never_completes(argv[2]);
  if (mode == "crossed") return crossed(number);
  if (mode == "throw-caught") return caught_in_main(number, Catch::prints);
  if (mode == "throw-silent") return caught_in_main(number, Catch::is_silent);
  if (mode == "throw-goes-on") return caught_in_main(number, Catch::goes_on);
  if (mode == "throw-uncaught") return uncaught(number);
  if (mode == "throw-inside") return catch_inside();
  if (mode == "init") return init_only();
  if (mode == "init-late") return init_late(number);
  if (mode == "init-left") return init_left();
  if (mode == "init-lists" && argc > 3) return init_lists(argv + 2);
  if (mode == "finalize") return finalizes();
  if (mode == "shutdown-early") return shutdown_early(number);
  if (mode == "stops-submitting") return stops_submitting(std::chrono::milliseconds(number));
  if (mode == "returns-early") return returns_early();
  if (mode == "stopped-before") return stopped(number, false);
  if (mode == "stopped-after") return stopped(number, true);
  if (mode == "cut-broadcast") return cut_broadcast();
  if (mode == "exit") return ends([&] { std::exit(number); });
  if (mode == "fork") return forks();
  if (mode == "killed") return ends([] { std::raise(SIGKILL); });
  std::fprintf(stderr, "unknown mode\n");
  return 2;
}
