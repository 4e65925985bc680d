// One rank of a job that has a fault: a loop of named allreduces, and what goes wrong in it.
//
// Usage: fault_rank FAULT PHASE RANKS [STEPS]
//   FAULT  none, kill, segv, abort (MPI_Abort), exit0, exit3, throw, caught (throws; main catches
//          what comes to it on any rank, and returns 10 + rank), stop, spin, deaf (spins, and
//          ignores SIGTERM), skip (a tensor), omit (a tensor, too, where all ranks submit the next
//          one before they wait for it), lines (100 of output), input (echoes standard input),
//          variable (prints FAULTS_VALUE), cores (prints how many it may use), leave (by agreement
//          of all ranks, after the step in which one of them has got SIGTERM), finish (shuts hora
//          down after five steps, as if it had no more work), again (100 times hora::init and
//          shutdown, and how much that has taken), late (20 ms behind the others in each step,
//          whose collectives then have one name), close (all descriptors from 3 on)
//   PHASE  init (before hora::init), negotiation (before it submits a new tensor), data (while a
//          large tensor travels), shutdown (in place of it), end (after it)
//   RANKS  that have the fault: "1", "0,3", "all"
//   STEPS  of the loop; 0: without end
// With FAULTS_PROGRESS, a file, it goes on at the step that the file says, and writes it after
// each. Prints "rank N: ready" after the first step, and each SIGUSR1 and SIGUSR2 that it gets,
// whose handlers it installs before hora::init.
#include <fcntl.h>
#include <hora/hora.h>
#include <mpi.h>
#include <sched.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <csignal>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <iterator>
#include <map>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

namespace {

using namespace std::chrono_literals;

constexpr int kFaultStep = 5;
constexpr std::size_t kLarge = std::size_t{4} << 20;

std::atomic<int> first_signals = 0, second_signals = 0, signals_to_end = 0;

struct Fault {
  std::string kind, phase;
  bool is_here = false;
};

/// As mpirun has numbered it: known before MPI is initialised.
int own_rank() {
  for (const char* name : {"OMPI_COMM_WORLD_RANK", "PMI_RANK"}) {
    if (const char* text = std::getenv(name)) return std::atoi(text);
  }
  return 0;
}

bool is_among(int rank, const std::string& ranks) {
  if (ranks == "all") return true;
  return ("," + ranks + ",").find("," + std::to_string(rank) + ",") != std::string::npos;
}

/// One line at once, so that lines of several ranks do not mix.
void say(const std::string& text) {
  const std::string line = "rank " + std::to_string(own_rank()) + ": " + text + "\n";
  if (::write(STDOUT_FILENO, line.data(), line.size()) < 0) std::abort();
}

/// Into the file that FAULTS_TIME names: when the fault happens, in nanoseconds since 1970.
void note_time() {
  const char* path = std::getenv("FAULTS_TIME");
  if (path == nullptr) return;
  const auto now = std::chrono::duration_cast<std::chrono::nanoseconds>(
      std::chrono::system_clock::now().time_since_epoch());
  const std::string line = std::to_string(now.count()) + "\n";
  const int file = ::open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
  if (file < 0 || ::write(file, line.data(), line.size()) < 0) std::abort();
  ::close(file);
}

void carry_out(const std::string& kind) {
  note_time();
  if (kind == "kill") std::raise(SIGKILL);
  if (kind == "segv") {
    std::signal(SIGSEGV, SIG_DFL);
    std::raise(SIGSEGV);
  }
  if (kind == "abort") MPI_Abort(MPI_COMM_WORLD, 7);
  if (kind == "exit0") std::exit(0);
  if (kind == "exit3") std::exit(3);
  if (kind == "throw" || kind == "caught") throw std::runtime_error("the application's own error");
  if (kind == "stop") std::raise(SIGSTOP);
  if (kind == "close") {
    for (int descriptor = 3; descriptor < 1024; ++descriptor) ::close(descriptor);
  }
  if (kind == "deaf") std::signal(SIGTERM, SIG_IGN);
  while (kind == "spin" || kind == "deaf") {
  }
}

/// The fault, where it is of this phase.
void reach(const Fault& fault, const std::string& phase) {
  if (fault.is_here && fault.phase == phase) carry_out(fault.kind);
}

void step(const hora::Context& world, const Fault& fault, std::int64_t number) {
  std::vector<float> values(100, 1.0F);
  std::vector<float> large(kLarge, 1.0F);
  const bool is_it = number == kFaultStep;
  if (is_it) reach(fault, "negotiation");
  const bool is_late = fault.kind == "late";
  if (is_late && fault.is_here) std::this_thread::sleep_for(20ms);
  const std::string name = is_late ? "step" : "step" + std::to_string(number);
  const bool waits_later = is_it && fault.kind == "omit";
  const bool is_absent = is_it && fault.is_here && (fault.kind == "skip" || fault.kind == "omit");
  hora::Handle small;
  if (!is_absent) {
    small = hora::allreduce_async(world, hora::view(values.data(), 100), {.name = name});
    if (!waits_later) small.wait();
  } else {
    std::this_thread::sleep_for(500ms);  // so that its next tensor comes after the others' first
  }
  if (!is_it) return;
  hora::Handle handle = hora::allreduce_async(
      world, hora::view(large.data(), static_cast<std::int64_t>(large.size())), {.name = "large"});
  reach(fault, "data");
  handle.wait();
  if (waits_later && !is_absent) small.wait();
}

void say_signals() {
  for (int left = first_signals.exchange(0); left > 0; --left) say("got SIGUSR1");
  for (int left = second_signals.exchange(0); left > 0; --left) say("got SIGUSR2");
}

/// Whether any rank was told.
bool is_any(const hora::Context& world, const char* name, int told) {
  hora::allreduce(world, hora::view(&told, 1), {.name = name, .op = hora::ReduceOp::max});
  return told > 0;
}

std::int64_t entries_of(const char* folder) {
  return std::distance(std::filesystem::directory_iterator(folder), {});
}

/// This process's own; resident memory in KiB.
std::map<std::string, std::int64_t> amounts() {
  std::ifstream status("/proc/self/status");
  std::string name;
  while (status >> name && name != "RssAnon:") {
  }
  std::int64_t kib = 0;
  if (!(status >> kib)) std::abort();
  return {{"descriptors", entries_of("/proc/self/fd")},
          {"threads", entries_of("/proc/self/task")},
          {"memory", kib}};
}

void start_again_and_again() {
  std::map<std::string, std::int64_t> before;
  for (int round = 1; round <= 100; ++round) {
    hora::Context world = hora::init();
    std::vector<float> values(1000, 1.0F);
    hora::allreduce(world, hora::view(values.data(), 1000), {.name = "values"});
    world.shutdown();
    if (round == 20) before = amounts();
  }
  for (const auto& [what, amount] : amounts()) {
    say(what + " " + std::to_string(before[what]) + " then " + std::to_string(amount));
  }
}

const char* const progress_file = std::getenv("FAULTS_PROGRESS");

/// By an earlier generation of the job.
std::int64_t steps_done() {
  std::int64_t steps = 0;
  if (progress_file != nullptr) std::ifstream(progress_file) >> steps;
  return steps;
}

void note_progress(const hora::Context& world, std::int64_t steps) {
  if (progress_file == nullptr) return;
  const std::string next = std::string(progress_file) + ".next";
  if (world.rank() == 0) {
    std::ofstream(next) << steps;
    std::filesystem::rename(next, progress_file);
  }
  hora::note_resumable(world, steps);
  if (is_any(world, "give way", hora::is_asked_to_give_way())) hora::give_way();
}

void run(const Fault& fault, std::int64_t steps) {
  if (fault.kind == "again") return start_again_and_again();
  reach(fault, "init");
  hora::Context world = hora::init();
  const std::int64_t first = steps_done();
  note_progress(world, first);
  for (std::int64_t number = first; steps == 0 || number < steps; ++number) {
    if (fault.kind == "finish" && fault.is_here && number == kFaultStep) {
      note_time();
      break;
    }
    step(world, fault, number);
    if (number == first) say("ready");
    note_progress(world, number + 1);
    say_signals();
    if (fault.kind == "leave" && is_any(world, "leave", signals_to_end)) {
      say("leaves");
      break;
    }
    std::this_thread::sleep_for(5ms);
  }
  if (fault.kind == "lines") {
    for (int i = 0; i < 100; ++i) say("line " + std::to_string(i) + " " + std::string(60, 'x'));
  }
  if (fault.kind == "input" && fault.is_here) {
    for (std::string line; std::getline(std::cin, line);) say("read " + line);
  }
  if (fault.kind == "cores") {
    cpu_set_t cores;
    if (::sched_getaffinity(0, sizeof cores, &cores) != 0) std::abort();
    say(std::to_string(CPU_COUNT(&cores)) + " cores");
  }
  if (fault.kind == "variable") {
    const char* value = std::getenv("FAULTS_VALUE");
    say(std::string("value ") + (value == nullptr ? "none" : value));
  }
  reach(fault, "shutdown");
  world.shutdown();
  reach(fault, "end");
}

/// Exit status of main().
int run_and_catch(const Fault& fault, std::int64_t steps) {
  try {
    run(fault, steps);
    return 0;
  } catch (const std::exception& error) {
    std::cerr << error.what() << std::endl;
    return 10 + own_rank();
  }
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 4) return 2;
  std::signal(SIGUSR1, [](int) { ++first_signals; });
  std::signal(SIGUSR2, [](int) { ++second_signals; });
  const Fault fault{argv[1], argv[2], is_among(own_rank(), argv[3])};
  if (fault.kind == "leave") std::signal(SIGTERM, [](int) { ++signals_to_end; });
  const std::int64_t steps = argc > 4 ? std::atoll(argv[4]) : 20;
  if (fault.kind == "caught") return run_and_catch(fault, steps);
  run(fault, steps);
}
