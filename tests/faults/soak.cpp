// Random faults in random phases of random jobs under horarun; prints a table of what horarun did.
//
// Usage: fault_soak NUMBER SEED
// Exit status: 0 only where no job hung, every culprit was named right, and nothing was left.
#include <signal.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <random>
#include <thread>

#include "tests/faults/launched_job.h"

namespace hora::launch::test {
namespace {

using Kind = JobProcess::Kind;
using std::chrono::system_clock;

/// Limits of hangs in ranks.
constexpr char kWarning[] = "1s";
constexpr char kTimeout[] = "3s";
constexpr double kHangLimit = 40;

struct Case {
  std::string fault, phase, layout;
  int ranks = 2;
  int rank = 0;         ///< that has the fault
  double delay = 0;     ///< seconds; of faults from outside
  bool inside = false;  ///< fault_rank does it
};

struct Outcome {
  bool hang = false, right = false;
  double seconds = 0;  ///< from the fault to horarun's end
  std::string leftovers, text;
};

struct Row {
  int count = 0, hangs = 0, wrong = 0, left = 0;
  std::vector<double> seconds;
};

Case draw(std::mt19937_64& random) {
  const auto below = [&](int limit) {
    return std::uniform_int_distribution<int>(0, limit - 1)(random);
  };
  const auto one_of = [&](const std::vector<std::string>& choices) {
    return choices[static_cast<std::size_t>(below(static_cast<int>(choices.size())))];
  };
  Case result;
  result.layout = one_of({"one node", "virtual nodes", "two hosts"});
  result.ranks = result.layout == "one node" ? 2 + below(3) : 4;
  result.rank = below(result.ranks);
  result.fault = one_of({"kill", "kill", "segv", "exit0", "exit3", "throw", "abort", "stop", "spin",
                         "skip", "all die", "SIGINT", "SIGTERM", "kill launcher", "kill mpirun",
                         "kill guard", "kill agent", "kill daemon"});
  result.inside = result.fault.find("SIG") != 0 && !result.fault.starts_with("kill ");
  if (result.inside) {
    result.phase = one_of({"init", "negotiation", "data", "shutdown"});
    if (result.fault == "abort" && result.phase == "init") result.phase = "data";
    if (result.fault == "skip") result.phase = "negotiation";
    // A rank that runs may take as long as it likes while others are in shutdown().
    if (result.fault == "spin" && result.phase == "shutdown") result.phase = "data";
  } else {
    result.phase = one_of({"start", "run"});
    result.delay = below(400) / 1000.0;
    if (result.fault == "kill daemon") result.layout = "two hosts", result.ranks = 4;
    result.rank %= result.ranks;
    // Before its rank runs there is no guard.
    if (result.fault == "kill guard" || result.fault == "kill daemon") result.phase = "run";
  }
  return result;
}

std::vector<std::string> arguments_of(const Case& each) {
  std::vector<std::string> result;
  if (each.layout == "two hosts") {
    result = {"-H", "127.0.0.1:2,127.0.0.2:2"};
  } else {
    result = {"-np", std::to_string(each.ranks)};
    if (each.layout == "virtual nodes") result.insert(result.end(), {"--ranks-per-node", "2"});
  }
  result.insert(result.end(), {"--stall-warning", kWarning, "--timeout", kTimeout, "--init-timeout",
                               kTimeout, FAULT_RANK});
  const std::vector<std::string> program =
      each.inside
          ? std::vector<std::string>{each.fault == "all die" ? "kill" : each.fault, each.phase,
                                     each.fault == "all die" ? "all" : std::to_string(each.rank)}
          : std::vector<std::string>{"none", "-", "-", "0"};
  result.insert(result.end(), program.begin(), program.end());
  return result;
}

bool has(const std::string& text, const std::string& part) {
  return text.find(part) != text.npos;
}

/// The fault from outside; the process number that it was done to.
pid_t carry_out(const Case& each, LaunchedJob& job) {
  if (each.phase == "run") job.wait_for(": ready", each.ranks);
  job.read_for(Seconds(each.delay));
  pid_t process = job.launcher();
  const std::string host = each.layout == "two hosts" && each.rank >= 2 ? "127.0.0.2" : "";
  if (each.fault == "kill mpirun") process = job.find(Kind::mpirun);
  if (each.fault == "kill guard") process = job.find(Kind::guard, each.rank);
  if (each.fault == "kill agent") process = job.find(Kind::agent, -1, host);
  if (each.fault == "kill daemon") process = job.find(Kind::daemon, -1, "127.0.0.2");
  const int signal = each.fault == "SIGINT" ? SIGINT : each.fault == "SIGTERM" ? SIGTERM : SIGKILL;
  if (process > 0) ::kill(process, signal);
  return process;
}

/// Whether horarun has said what was done, and ended with its status.
bool is_right(const Case& each, const LaunchedJob& job, int status, pid_t process) {
  const std::string& said = job.error();
  const auto lines = job.error_lines("horarun: ");
  const std::string last = lines.empty() ? "" : lines.back();
  const std::string rank = "rank " + std::to_string(each.rank) + " (host ";
  const std::string number = std::to_string(each.rank);
  const bool is_late = has(last, rank) && has(last, "has not called hora::init");
  const bool is_awaited = is_late ||
                          (has(last, "rank " + number + " ") && has(last, " did not come to ")) ||
                          has(said, "waits for rank " + number) || has(said, "ranks " + number);
  const std::string lacks = each.phase == "init" ? "before it called hora::init" : "shutdown";
  struct Right {
    std::optional<int> status;
    std::vector<std::string> parts = {};  ///< of its last line
  };
  const std::map<std::string, Right> rights{{"kill", {137, {rank, "SIGKILL"}}},
                                            {"segv", {139, {rank, "SIGSEGV"}}},
                                            {"exit0", {1, {rank, lacks}}},
                                            {"exit3", {3, {rank}}},
                                            {"throw", {134, {rank, "own error"}}},
                                            {"abort", {7, {rank}}},
                                            {"all die", {137, {"SIGKILL"}}},
                                            {"SIGINT", {130}},
                                            {"SIGTERM", {143}},
                                            {"kill launcher", {137}},
                                            {"kill mpirun", {{}, {"mpirun was killed"}}},
                                            {"kill guard", {{}, {rank, "guard"}}},
                                            {"kill agent", {69, {"agent"}}},
                                            {"kill daemon", {{}, {"127.0.0.2", "daemon"}}}};
  if (each.fault == "stop") return has(said, rank) && has(said, "is stopped") && status != 0;
  if (each.fault == "spin" || each.fault == "skip") return is_awaited && status != 0;
  if (process <= 0 && !each.inside) return true;  // was not there yet
  const Right& right = rights.at(each.fault);
  return status == right.status.value_or(status) &&
         std::ranges::all_of(right.parts, [&](const auto& part) { return has(last, part); });
}

double now() {
  return std::chrono::duration<double>(system_clock::now().time_since_epoch()).count();
}

Outcome run(const Case& each) {
  LaunchedJob job({.arguments = arguments_of(each)});
  Outcome result;
  double begin = now();
  pid_t process = 0;
  if (!each.inside) {
    process = carry_out(each, job);
    begin = now();
    if (process <= 0) ::kill(job.launcher(), SIGINT);
  }
  const auto status = job.wait(Seconds(kHangLimit));
  result.hang = !status || (each.fault == "kill launcher" && !job.wait_for_no_process(Seconds(10)));
  result.seconds = now() - begin;
  if (each.inside) result.seconds = job.since_fault().value_or(Seconds(result.seconds)).count();
  result.right = status && is_right(each, job, *status, process);
  if (!result.hang) result.leftovers = job.leftovers();
  result.text =
      "exit status " + (status ? std::to_string(*status) : "none") + "\n" + transcript(job);
  return result;
}

void print(const std::map<std::pair<std::string, std::string>, Row>& table) {
  std::printf("| fault | phase | jobs | median | worst | hangs | wrong culprit | left behind |\n");
  std::printf("|---|---|---:|---:|---:|---:|---:|---:|\n");
  Row sum;
  const auto line = [](const std::string& fault, const std::string& phase, Row row) {
    std::ranges::sort(row.seconds);
    std::printf("| %s | %s | %d | %.1f s | %.1f s | %d | %d | %d |\n", fault.c_str(), phase.c_str(),
                row.count, row.seconds[row.seconds.size() / 2], row.seconds.back(), row.hangs,
                row.wrong, row.left);
  };
  for (const auto& [key, row] : table) {
    line(key.first, key.second, row);
    sum.count += row.count;
    sum.hangs += row.hangs;
    sum.wrong += row.wrong;
    sum.left += row.left;
    sum.seconds.insert(sum.seconds.end(), row.seconds.begin(), row.seconds.end());
  }
  if (sum.count > 0) line("all", "", sum);
}

int soak(int number, std::uint64_t seed) {
  std::mt19937_64 random(seed);
  std::map<std::pair<std::string, std::string>, Row> table;
  bool all_well = true;
  for (int i = 0; i < number; ++i) {
    const Case each = draw(random);
    const Outcome outcome = run(each);
    Row& row = table[{each.fault, each.phase}];
    ++row.count;
    row.seconds.push_back(outcome.seconds);
    row.hangs += outcome.hang ? 1 : 0;
    row.wrong += outcome.right ? 0 : 1;
    row.left += outcome.leftovers.empty() ? 0 : 1;
    if (!outcome.hang && outcome.right && outcome.leftovers.empty()) continue;
    all_well = false;
    std::fprintf(stderr, "%d: %s in %s of rank %d of %d, %s: %s%s%s\n%s%s", i, each.fault.c_str(),
                 each.phase.c_str(), each.rank, each.ranks, each.layout.c_str(),
                 outcome.hang ? "HANG " : "", outcome.right ? "" : "WRONG CULPRIT ",
                 outcome.leftovers.empty() ? "" : "LEFT BEHIND", outcome.leftovers.c_str(),
                 outcome.text.c_str());
  }
  print(table);
  return all_well ? 0 : 1;
}

}  // namespace
}  // namespace hora::launch::test

int main(int argc, char** argv) {
  if (argc != 3) {
    std::fprintf(stderr, "Usage: fault_soak NUMBER SEED\n");
    return 2;
  }
  return hora::launch::test::soak(std::atoi(argv[1]), std::strtoull(argv[2], nullptr, 10));
}
