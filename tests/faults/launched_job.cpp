#include "tests/faults/launched_job.h"

#include <fcntl.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <sys/mount.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <stdexcept>
#include <system_error>
#include <thread>

#include "core/base/process.h"
#include "core/launch/control/system.h"
#include "core/launch/guard/guard.h"
#include "tests/support/read_file.h"

namespace hora::launch::test {
namespace {

namespace fs = std::filesystem;
using Clock = std::chrono::steady_clock;

constexpr char kMarkVariable[] = "FAULTS_JOB";
constexpr char kHostVariable[] = "FAULTS_HOST";

/// The texts of a process's file, each of which ends with a zero byte.
std::vector<std::string> texts_of(const fs::path& file) {
  std::istringstream text(internal::test::read_file(file));
  std::vector<std::string> result;
  for (std::string each; std::getline(text, each, '\0');) result.push_back(each);
  return result;
}

/// Returns a variable of a process's environment; none where it is not set.
std::optional<std::string> variable(const std::vector<std::string>& environment,
                                    const std::string& name) {
  const auto found = std::ranges::find_if(
      environment, [&](const std::string& each) { return each.starts_with(name + "="); });
  if (found == environment.end()) return std::nullopt;
  return found->substr(name.size() + 1);
}

JobProcess::Kind kind_of(const std::vector<std::string>& arguments) {
  using Kind = JobProcess::Kind;
  if (arguments.empty()) return Kind::other;
  const std::string program = fs::path(arguments[0]).filename();
  const std::string mode = arguments.size() > 1 ? arguments[1] : "";
  if (program == "horarun") {
    if (mode == "--agent") return Kind::agent;
    if (mode == "--guard") return Kind::guard;
    return mode == "--remote-shell" ? Kind::other : Kind::launcher;
  }
  if (program == "fault_rank") return Kind::rank;
  if (program.starts_with("mpirun") || program.starts_with("mpiexec") || program == "orterun" ||
      program == "prterun") {
    return Kind::mpirun;
  }
  if (program == "orted" || program == "prted" || program == "hydra_pmi_proxy") return Kind::daemon;
  return Kind::other;
}

/// Lists what jobs share through this host's kernel, and could leave there: memory and semaphores,
/// of POSIX in /dev/shm and of System V, that no process uses. Lines of leftovers.sh, by way of
/// `list`.
std::set<std::string> shared_objects(const std::string& list) {
  if (std::system(("bash " LEFTOVERS_SCRIPT " > " + list).c_str()) != 0) {
    throw std::runtime_error("leftovers.sh has failed");
  }
  const auto lines = lines_of(internal::test::read_file(list));
  return {lines.begin(), lines.end()};
}

/// Where this process may: /dev/shm and System V's objects are its own, so that none is of a job
/// that is not.
[[maybe_unused]] const bool kHasOwnObjects =
    ::unshare(CLONE_NEWNS | CLONE_NEWIPC) == 0 &&
    ::mount("none", "/", nullptr, MS_REC | MS_PRIVATE, nullptr) == 0 &&
    ::mount("none", "/dev/shm", "tmpfs", 0, nullptr) == 0;

std::string mark() {
  static std::atomic<int> number = 0;
  return std::to_string(::getpid()) + "-" + std::to_string(++number);
}

}  // namespace

LaunchedJob::LaunchedJob(JobOptions options)
    : mark_(mark()), shared_before_(shared_objects(folder_.file("shared"))) {
  const std::string temporary = folder_.file("tmp");
  fs::create_directory(temporary);
  fs::create_symlink(FAULTS_FOLDER "/ssh.sh", folder_.file("ssh"));
  ChildOptions child;
  if (!options.host_name.empty()) {
    child.arguments = {"unshare",        "--uts", "sh", "-c", "hostname $0 && exec \"$@\"",
                       options.host_name};
  }
  child.arguments.push_back(options.launcher);
  child.arguments.insert(child.arguments.end(), options.arguments.begin(), options.arguments.end());
  child.environment = std::move(options.environment);
  for (const std::string& variable :
       {std::string(kMarkVariable) + "=" + mark_, "TMPDIR=" + temporary,
        "HORARUN_SSH=" + folder_.file("ssh"), "FAULTS_HIDDEN=" + options.hidden,
        "FAULTS_TIME=" + fault_file(),
        // Emulated hosts and other tests share this machine's cores.
        std::string("OMPI_MCA_mpi_yield_when_idle=1"),
        // Without /sys hwloc says so in every process.
        std::string("HWLOC_HIDE_ERRORS=2")}) {
    child.environment.push_back(variable);
  }
  const std::string input_path = folder_.file("input");
  std::ofstream(input_path) << options.input;
  UniqueFd input(::open(input_path.c_str(), O_RDONLY | O_CLOEXEC));
  child.input = input.get();
  Pipe output = make_pipe(), error = make_pipe();
  child.output = output.write.get();
  child.error = error.write.get();
  // Every emulated host has segments of its own in a folder of its agent, unless these are set.
  ::unsetenv("OMPI_MCA_btl_vader_backing_directory");
  ::unsetenv("OMPI_MCA_btl_sm_backing_directory");
  const auto started = start_child(child);
  if (!started) throw std::runtime_error(started.error());
  launcher_ = *started;
  output_end_ = std::move(output.read);
  error_end_ = std::move(error.read);
}

LaunchedJob::~LaunchedJob() {
  // Its agents, which end with it, remove their folders.
  if (!status_) ::kill(launcher_, SIGKILL);
  wait_for_no_process(Seconds(6));
  const auto end = Clock::now() + std::chrono::seconds(5);
  while (Clock::now() < end) {
    const auto left = processes();
    if (left.empty()) break;
    for (const JobProcess& process : left) ::kill(process.pid, SIGKILL);
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }
  if (!status_) ::waitpid(launcher_, nullptr, 0);
}

bool LaunchedJob::read_once(Seconds limit) {
  std::array<pollfd, 2> entries{pollfd{output_end_.get(), POLLIN, 0},
                                pollfd{error_end_.get(), POLLIN, 0}};
  ::poll(entries.data(), entries.size(), static_cast<int>(limit.count() * 1000));
  for (std::size_t i = 0; i < entries.size(); ++i) {
    if (entries[i].revents == 0) continue;
    UniqueFd& end = i == 0 ? output_end_ : error_end_;
    std::array<char, 65536> bytes;
    const ssize_t count = ::read(end.get(), bytes.data(), bytes.size());
    if (count > 0) (i == 0 ? output_ : error_).append(bytes.data(), std::size_t(count));
    if (count == 0) end.reset();
  }
  return output_end_ || error_end_;
}

void LaunchedJob::read_for(Seconds time) {
  const auto end = Clock::now() + time;
  while (Clock::now() < end) {
    if (!read_once(Seconds(0.02))) std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }
}

std::optional<int> LaunchedJob::wait(Seconds limit) {
  const auto end = Clock::now() + limit;
  while (!status_) {
    int status = 0;
    if (::waitpid(launcher_, &status, WNOHANG) == launcher_) {
      status_ = shell_status(status);
      ended_ = std::chrono::system_clock::now();
    } else if (Clock::now() >= end) {
      return std::nullopt;
    }
    if (!read_once(Seconds(0.02))) std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  // Reads what it wrote last; a process that is left over may hold the pipes open.
  const auto last = Clock::now() + std::chrono::seconds(1);
  while ((output_end_ || error_end_) && Clock::now() < last) read_once(Seconds(0.05));
  return status_;
}

bool LaunchedJob::wait_for(const std::string& text, int times, Seconds limit) {
  const auto count = [&] {
    int found = 0;
    for (const std::string* each : {&output_, &error_}) {
      for (auto at = each->find(text); at != each->npos; at = each->find(text, at + 1)) ++found;
    }
    return found;
  };
  const auto end = Clock::now() + limit;
  while (count() < times) {
    if (Clock::now() >= end) return false;
    if (!read_once(Seconds(0.02))) return count() >= times;
  }
  return true;
}

std::optional<Seconds> LaunchedJob::wait_for_no_process(Seconds limit) {
  const auto begin = Clock::now();
  while (!processes().empty()) {
    if (!status_) wait(Seconds(0));
    if (Clock::now() - begin > limit) return std::nullopt;
    read_once(Seconds(0.02));
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }
  return Clock::now() - begin;
}

std::optional<Seconds> LaunchedJob::since_fault() const {
  std::int64_t nanoseconds = 0;
  if (!(std::ifstream(fault_file()) >> nanoseconds)) return std::nullopt;
  const auto end = status_ ? ended_ : std::chrono::system_clock::now();
  return end.time_since_epoch() - std::chrono::nanoseconds(nanoseconds);
}

std::string LaunchedJob::complaints() const {
  std::string text;
  for (const std::string& line : lines_of(error_)) {
    const bool is_remark =
        line.starts_with("horarun: cores: ") || line.starts_with("horarun: network: ");
    if (!is_remark) text += line + "\n";
  }
  return text;
}

std::vector<std::string> LaunchedJob::error_lines(const std::string& text) const {
  std::vector<std::string> lines = lines_of(error_);
  std::erase_if(lines, [&](const std::string& line) { return line.find(text) == line.npos; });
  return lines;
}

std::vector<JobProcess> LaunchedJob::processes() const {
  std::vector<JobProcess> result;
  std::error_code error;
  for (fs::directory_iterator entry("/proc", error), end; !error && entry != end;
       entry.increment(error)) {
    const fs::path& path = entry->path();
    const std::string number = path.filename();
    if (number.find_first_not_of("0123456789") != number.npos) continue;
    const auto stat = internal::process_stat(std::stoll(number));
    if (!stat || stat->state == internal::ProcessState::gone) continue;
    const auto environment = texts_of(path / "environ");
    if (variable(environment, kMarkVariable) != mark_) continue;
    JobProcess process;
    process.pid = static_cast<pid_t>(stat->pid);
    process.stopped = stat->state == internal::ProcessState::stopped;
    process.name = stat->name;
    process.kind = process.name == kStandInName ? Kind::other : kind_of(texts_of(path / "cmdline"));
    process.host = variable(environment, kHostVariable).value_or("");
    if (process.kind == Kind::rank || process.kind == Kind::guard) {
      for (const char* name : {"OMPI_COMM_WORLD_RANK", "PMI_RANK"}) {
        if (const auto rank = variable(environment, name)) process.rank = std::stoi(*rank);
      }
    }
    result.push_back(std::move(process));
  }
  return result;
}

pid_t LaunchedJob::find(Kind kind, int rank, const std::string& host) const {
  for (const JobProcess& process : processes()) {
    if (process.kind == kind && (rank < 0 || process.rank == rank) &&
        (rank >= 0 || process.host == host)) {
      return process.pid;
    }
  }
  return 0;
}

pid_t LaunchedJob::process(Kind kind, int rank, const std::string& host) const {
  const pid_t found = find(kind, rank, host);
  if (found > 0) return found;
  throw std::runtime_error("a process that the test wants is not there; " + transcript(*this));
}

std::string LaunchedJob::leftovers_now() const {
  std::string left;
  for (const JobProcess& process : processes()) {
    left += "process " + std::to_string(process.pid) + " (" + process.name + ")\n";
  }
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(folder_.path() / "tmp", error)) {
    left += "temporary file " + entry.path().string() + "\n";
  }
  for (const std::string& object : shared_objects(folder_.file("shared"))) {
    if (!shared_before_.contains(object)) left += object + "\n";
  }
  return left;
}

std::string LaunchedJob::leftovers() const {
  const auto end = Clock::now() + std::chrono::seconds(3);
  std::string left = leftovers_now();
  while (!left.empty() && Clock::now() < end) {
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
    left = leftovers_now();
  }
  return left;
}

bool hosts_can_have_names() {
  return std::system("unshare --uts true 2> /dev/null") == 0;
}

bool hosts_can_hide_folders() {
  return std::system("unshare --uts --mount true 2> /dev/null") == 0;
}

std::vector<std::string> lines_of(const std::string& text) {
  std::vector<std::string> result;
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) result.push_back(line);
  return result;
}

std::string transcript(const LaunchedJob& job) {
  std::string text = "output:\n" + job.output() + "error:\n" + job.error() + "processes:\n";
  for (const JobProcess& process : job.processes()) {
    text += std::to_string(process.pid) + " " + process.name + " rank " +
            std::to_string(process.rank) + (process.stopped ? " (stopped)\n" : "\n");
  }
  return text;
}

}  // namespace hora::launch::test
