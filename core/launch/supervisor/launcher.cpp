#include "core/launch/supervisor/launcher.h"

#include <fcntl.h>
#include <hora/error.h>
#include <hora/printable.h>
#include <signal.h>
#include <sys/signalfd.h>
#include <sys/stat.h>
#include <sys/wait.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <numeric>
#include <set>
#include <system_error>

#include "core/base/text.h"
#include "core/flight/flight_recorder.h"
#include "core/launch/guard/guard.h"
#include "core/launch/text.h"

namespace hora::launch {
namespace {

constexpr std::chrono::milliseconds kLongestWait{200};

[[noreturn]] void refuse_folder(const std::string& path) {
  throw Error(ErrorCode::invalid_argument,
              fmt::format("--output-filename: {}: {}; name a folder that can be made or written",
                          path, std::strerror(errno)));
}

using internal::RecordState;

/// A rank that has done nothing for longer is said to.
constexpr std::uint64_t kIdleMilliseconds = 5000;
constexpr std::size_t kWidestCell = 32;
constexpr std::size_t kMostRows = 40;
const std::vector<std::string> kHeadings{"rank",  "host",   "collectives", "last collective",
                                         "last",  "median", "p99",         "lost in",
                                         "state", "doing"};
constexpr char kAlignment[] = "><><>>><<<";

/// Names differ at their ends: of long ones the beginning is left out.
std::string cut_front(const std::string& text, std::size_t most) {
  std::size_t begin = text.size();
  while (begin > 0 && most > 0) {
    if (!internal::continues_character(text[--begin])) --most;
  }
  return text.substr(begin);
}

std::string span_text(Moment length) {
  const auto seconds = std::chrono::duration_cast<std::chrono::seconds>(length).count();
  if (seconds < 60) return fmt::format("{} s", seconds);
  return fmt::format("{} min {} s", seconds / 60, seconds % 60);
}

constexpr std::chrono::milliseconds kTick{100};
constexpr std::chrono::milliseconds kLocalAgentsEnd{2000};
constexpr Moment kDiscoveryInterval{1000};
constexpr std::size_t kMostErrorText = 1000;
constexpr int kOutputError = 74;  ///< sysexits.h, EX_IOERR

class Launcher {
 public:
  explicit Launcher(LauncherOptions& options)
      : options_(options),
        output_(options.output),
        signals_(
            signals_as_descriptor({SIGCHLD, SIGTERM, SIGINT, SIGHUP, SIGQUIT, SIGUSR1, SIGUSR2})) {
    if (options.watch_interval) next_table_ = now() + *options.watch_interval;
  }

  /// An agent ends with its connection, and removes its folders then, which it may just have made.
  /// On other hosts that goes on without what has connected it, such as ssh.
  ~Launcher() {
    if (script_) ::kill(-script_->process, SIGKILL);
    for (auto& [name, agent] : agents_) agent.channel.reset();
    const auto limit = Clock::now() + kLocalAgentsEnd;
    for (auto& [name, agent] : agents_) {
      while (agent.is_local && agent.process > 0 && Clock::now() < limit) {
        if (::waitpid(agent.process, nullptr, WNOHANG) == agent.process) agent.process = 0;
        if (agent.process > 0) ::usleep(10000);
      }
      end_process(agent);
    }
  }

  int run() {
    loop_.watch(signals_.get(), POLLIN, [this](short) { on_signals(); });
    loop_.each(kTick, [this] {
      if (Clock::now() >= next_heartbeat_) {
        next_heartbeat_ = Clock::now() + options_.plan.silence / kBeatsOfSilence;
        for (auto& [name, agent] : agents_) {
          if (agent.channel) agent.channel->send(Heartbeat{});
        }
      }
      output_.on_time(Clock::now());
      say_lost_output();
      if (supervisor_) carry_out(supervisor_->on_time(now()));
      if (options_.elastic && status_ < 0) go_on();
      if (live_ && now() >= next_table_) {
        next_table_ = now() + *options_.watch_interval;
        std::fputs(live_->table(now()).c_str(), stderr);
      }
    });
    if (!options_.elastic) begin();
    loop_.run();
    end_agents();
    output_.finish();
    say_lost_output();
    return status_ == 0 && lost_output_was_said_ ? kOutputError : status_;
  }

 private:
  struct Script {
    pid_t process;
    UniqueFd output;
    std::string text = {};
  };

  /// One host's agent, or the program (ssh) that connects with it.
  struct Agent {
    pid_t process = 0;
    bool is_local = false;
    std::unique_ptr<Channel> channel;
    UniqueFd error;
    std::string error_text;  ///< the end of what it has written there
    bool lost = false;
    std::optional<Hello> hello;
  };

  static void end_process(Agent& agent) {
    if (agent.process <= 0) return;
    ::kill(agent.process, SIGKILL);
    ::waitpid(agent.process, nullptr, 0);
    agent.process = 0;
  }

  /// A generation, whose hosts and ranks options_.plan has.
  void begin() {
    const JobPlan& plan = options_.plan;
    if (options_.watch_interval) live_.emplace(plan.hosts, now(), plan.generation);
    supervisor_.emplace(plan, now());
    hosts_.clear();
    options_.agents.resize(plan.hosts.size());
    for (const JobHost& host : plan.hosts) hosts_.push_back(host.name);
    // A host that cannot be reached may end it at once.
    for (std::size_t host = 0; supervisor_ && host < hosts_.size(); ++host) {
      Agent& agent = agents_[hosts_[host]];
      if (!agent.channel) {
        agent.is_local = host == plan.launcher_host;
        start_agent(host);
      } else if (agent.hello) {
        carry_out(supervisor_->on_message(host, *agent.hello, now()));
      }
    }
  }

  /// An elastic job: looks whether a generation can begin, or is to give way.
  void go_on() {
    look_for_hosts();
    const ElasticJob& job = *options_.elastic;
    if (supervisor_) {
      if (const auto reason = reason_to_end(); !reason.empty()) {
        carry_out(supervisor_->give_way(reason));
      }
      return;
    }
    auto next = next_generation(now(), job.hosts, ended_, job.options);
    if (auto* const generation = std::get_if<Generation>(&next)) {
      options_.plan = job.plan(*generation);
      if (!ended_.empty()) {
        options_.plan.recovery = {ended_.back().loss.text, ended_.back().time,
                                  ended_.back().loss.reached};
        drop_lost_agents(ended_.back().loss.hosts);
      }
      running_ = std::move(*generation);
      begun_ = now();
      return begin();
    }
    // Else the next generation's line says what the last one has lost.
    const bool was_said = std::exchange(loss_was_said_, true);
    if (!was_said && !ended_.empty()) say({ended_.back().loss.text});
    if (const auto* const wait = std::get_if<WaitForHosts>(&next)) {
      if (!was_said) say({wait->text + "; the job waits for more hosts"});
      return;
    }
    say({"the job ends: " + std::get<GiveUp>(next).text});
    finish(last_status_);
  }

  /// Why the generation that runs is to give way now; empty: it is not.
  std::string reason_to_end() const {
    const ElasticJob& job = *options_.elastic;
    return reason_to_give_way(running_, begun_, now(), job.hosts, ended_, job.options);
  }

  void on_generation_ended(const Finish& finish_of) {
    ended_.push_back({running_, now(), *finish_of.loss});
    last_status_ = std::max(1, finish_of.status);
    loss_was_said_ = false;
    supervisor_.reset();
  }

  void finish(int status) {
    status_ = status;
    loop_.stop();
  }

  /// Hosts that are lost get a new agent when they are used again.
  void drop_lost_agents(const std::vector<std::string>& lost_hosts) {
    for (auto entry = agents_.begin(); entry != agents_.end();) {
      Agent& agent = entry->second;
      const bool is_lost = agent.lost || left_out_.contains(entry->first) ||
                           std::ranges::find(lost_hosts, entry->first) != lost_hosts.end();
      if (is_lost && agent.error) loop_.forget(agent.error.get());
      if (is_lost && !agent.lost) end_agent(agent, 0);
      if (is_lost) end_process(agent);
      entry = is_lost ? agents_.erase(entry) : std::next(entry);
    }
  }

  /// Those of an elastic job stay between generations.
  void end_agents() {
    if (!options_.elastic) return;
    for (auto& [name, agent] : agents_) {
      if (!agent.lost) end_agent(agent, status_);
    }
  }

  static void end_agent(Agent& agent, int status) {
    if (!agent.channel) return;
    agent.channel->send(EndAll{{}, 0, SIGTERM, status, false});
    agent.channel->flush(kLocalAgentsEnd);
  }

  /// Runs the discovery script about once a second.
  void look_for_hosts() {
    const std::string& script = options_.elastic->options.discovery_script;
    if (script_) {
      // Its output ends with it.
      if (now() >= next_discovery_ + kDiscoveryLimit) ::kill(-script_->process, SIGKILL);
      return;
    }
    if (script.empty() || now() < next_discovery_) return;
    next_discovery_ = now() + kDiscoveryInterval;
    Pipe output = make_pipe();
    const auto process = start_child(
        {.arguments = {script}, .output = output.write.get(), .error = output.write.get()});
    if (!process) return take_hosts(tl::unexpected(process.error()));
    script_ = Script{*process, std::move(output.read)};
    loop_.watch(script_->output.get(), POLLIN, [this](short) { read_script(); });
  }

  void read_script() {
    std::array<char, 4096> bytes;
    const ssize_t count = ::read(script_->output.get(), bytes.data(), bytes.size());
    if (count > 0 && script_->text.size() < kMostCaptured) {
      script_->text.append(bytes.data(), static_cast<std::size_t>(count));
    }
    if (count > 0 || (count < 0 && errno == EINTR)) return;
    loop_.forget(script_->output.get());
    ::kill(-script_->process, SIGKILL);
    int status = 0;
    ::waitpid(script_->process, &status, 0);
    take_hosts(CapturedOutput{std::move(script_->text), shell_status(status)});
    script_.reset();
  }

  void take_hosts(const tl::expected<CapturedOutput, std::string>& output) {
    ElasticJob& job = *options_.elastic;
    auto hosts = job.hosts_of(output);
    const std::string problem = hosts ? "" : hosts.error();
    if (!problem.empty() && problem != discovery_problem_) {
      say({problem + "; the hosts stay as they were"});
    }
    discovery_problem_ = problem;
    if (!hosts) return;
    job.hosts = std::move(*hosts);
    std::erase_if(job.hosts, [&](const auto& host) { return left_out_.contains(host.name); });
  }

  void say_lost_output() {
    if (output_.failure().empty() || std::exchange(lost_output_was_said_, true)) return;
    say({"output of ranks is lost: " + output_.failure()});
  }

  void start_agent(std::size_t host) {
    if (options_.agents[host].in) return connect(host, std::move(options_.agents[host]));
    int ends[2];
    if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0) {
      throw std::system_error(errno, std::generic_category(), "socketpair");
    }
    UniqueFd here(ends[0]), there(ends[1]);
    Pipe error = make_pipe();
    Agent& agent = agents_[hosts_[host]];
    const auto process = start_child({.arguments = options_.plan.hosts[host].agent_command,
                                      .input = there.get(),
                                      .output = there.get(),
                                      .error = error.write.get(),
                                      .own_session = true});
    if (!process) return on_lost(hosts_[host], process.error());
    agent.process = *process;
    agent.error = std::move(error.read);
    ::fcntl(agent.error.get(), F_SETFL, O_NONBLOCK);
    loop_.watch(agent.error.get(), POLLIN, [this, &agent](short) { on_error_output(agent); });
    connect(host, connection_of(std::move(here)));
  }

  void connect(std::size_t host, Connection connection) {
    const std::string& name = hosts_[host];
    agents_[name].channel = std::make_unique<Channel>(
        loop_, std::move(connection),
        [this, name](Message&& message) { on_message(name, std::move(message)); },
        [this, name](const std::string& reason) { on_lost(name, reason); });
  }

  /// The host's number in the generation that runs; none: it has no part in it.
  std::optional<std::size_t> number_of(const std::string& host) const {
    const auto found = std::ranges::find(hosts_, host);
    if (!supervisor_ || found == hosts_.end()) return std::nullopt;
    return static_cast<std::size_t>(found - hosts_.begin());
  }

  void on_message(const std::string& name, Message&& message) {
    if (const auto* const hello = std::get_if<Hello>(&message)) agents_[name].hello = *hello;
    const auto number = number_of(name);
    if (std::holds_alternative<HostDrained>(message)) drain(name, number.has_value());
    if (!number) return;
    const std::size_t host = *number;
    if (const auto* output = std::get_if<RankOutput>(&message)) {
      output_.write(output->rank, options_.plan.hosts[host].name, output->error,
                    {reinterpret_cast<const char*>(output->bytes.data()), output->bytes.size()});
    }
    if (live_) live_->on_message(host, message, now());
    carry_out(supervisor_->on_message(host, message, now()));
  }

  /// The job goes on without the host; where it cannot, its ranks get the signal.
  void drain(const std::string& name, bool is_used) {
    leave_out(name);
    if (is_used && reason_to_end().empty()) agents_[name].channel->send(SignalRanks{{}, SIGTERM});
  }

  void leave_out(const std::string& host) {
    left_out_.insert(host);
    std::erase_if(options_.elastic->hosts, [&](const auto& each) { return each.name == host; });
  }

  void on_error_output(Agent& agent) {
    std::array<char, 4096> bytes;
    const ssize_t count = ::read(agent.error.get(), bytes.data(), bytes.size());
    if (count < 0 && (errno == EAGAIN || errno == EINTR)) return;
    if (count <= 0) return loop_.forget(agent.error.get());
    agent.error_text.append(bytes.data(), static_cast<std::size_t>(count));
    if (agent.error_text.size() > kMostErrorText) {
      agent.error_text.erase(0, agent.error_text.size() - kMostErrorText);
    }
  }

  void on_lost(const std::string& name, const std::string& reason) {
    Agent& agent = agents_[name];
    if (std::exchange(agent.lost, true)) return;
    const auto host = number_of(name);
    LostAgent lost{.how = reason};
    if (agent.process > 0) {
      // The connection ends just before its process does.
      int status = 0;
      for (int attempt = 0; attempt < 20; ++attempt) {
        const pid_t ended = ::waitpid(agent.process, &status, WNOHANG);
        if (ended == agent.process) {
          agent.process = 0;
          lost.how =
              fmt::format("{} {}", host ? options_.plan.hosts[*host].agent_command.front() : "",
                          status_text(status));
          lost.status = status;
          break;
        }
        ::usleep(10000);
      }
      on_error_output(agent);
      while (agent.error_text.ends_with('\n')) agent.error_text.pop_back();
      if (!agent.error_text.empty()) lost.how += ": " + printable(agent.error_text);
    }
    if (!host) return;
    // A node that has met the others cannot be started from here.
    if (options_.elastic && options_.plan.hosts[*host].agent_command.empty()) leave_out(name);
    carry_out(supervisor_->on_lost(*host, lost, now()));
  }

  void on_signals() {
    signalfd_siginfo info{};
    while (::read(signals_.get(), &info, sizeof info) == sizeof info) {
      if (info.ssi_signo == SIGCHLD) continue;  // its connection ends, too
      const int number = static_cast<int>(info.ssi_signo);
      if (supervisor_) {
        carry_out(supervisor_->on_signal(number, now()));
      } else if (number != SIGUSR1 && number != SIGUSR2) {  // between two generations
        finish(128 + number);
      }
    }
  }

  void carry_out(const std::vector<Instruction>& actions) {
    for (const Instruction& action : actions) {
      if (const auto* send = std::get_if<SendTo>(&action)) {
        if (const auto& channel = agents_[hosts_[send->host]].channel) channel->send(send->message);
      } else if (const auto* line = std::get_if<Say>(&action)) {
        say(*line);
      } else {
        const Finish& end = std::get<Finish>(action);
        if (end.loss) return on_generation_ended(end);
        finish(end.status);
      }
    }
  }

  void say(const Say& line) {
    if (line.verbose && !options_.verbose) return;
    std::fprintf(stderr, line.is_output ? "%s" : "horarun: %s\n", line.text.c_str());
  }

  static Moment now() {
    return std::chrono::duration_cast<Moment>(Clock::now().time_since_epoch());
  }

  LauncherOptions& options_;
  EventLoop loop_;
  std::optional<Supervisor> supervisor_;  ///< none: between two generations of an elastic job
  std::optional<LiveView> live_;
  Moment next_table_{0};
  RankOutputWriter output_;
  UniqueFd signals_;
  std::map<std::string, Agent> agents_;  ///< by host
  std::vector<std::string> hosts_;       ///< of the generation
  Generation running_;
  Moment begun_{0};  ///< when that has begun
  std::vector<GenerationEnd> ended_;
  std::set<std::string> left_out_;  ///< hosts that are used no more
  std::optional<Script> script_;    ///< that runs
  std::string discovery_problem_;
  Moment next_discovery_{0};
  bool loss_was_said_ = false;
  int last_status_ = 1;  ///< of the last generation
  Clock::time_point next_heartbeat_ = Clock::now();
  int status_ = -1;  ///< -1: it goes on
  bool lost_output_was_said_ = false;
};

}  // namespace

RankOutputWriter::RankOutputWriter(RankOutputOptions options) : options_(std::move(options)) {
  if (options_.folder.empty()) return;
  const std::filesystem::path folder(options_.folder);
  std::error_code error;
  if (folder.has_parent_path()) std::filesystem::create_directories(folder.parent_path(), error);
  if (::mkdir(folder.c_str(), 0700) != 0 && errno != EEXIST) refuse_folder(options_.folder);
  if (::access(folder.c_str(), W_OK | X_OK) != 0) refuse_folder(options_.folder);
}

void RankOutputWriter::write(int rank, const std::string& host, bool error,
                             std::string_view bytes) {
  if (!options_.folder.empty()) write_all(file_of(rank), path_of(rank), bytes);
  if (!options_.shown.empty() && !options_.shown.contains(rank)) return;
  Stream& stream = streams_[{rank, error}];
  stream.host = host;
  stream.waits_since.reset();
  const std::string prefix = options_.prefix ? fmt::format("{}:{}: ", host, rank) : "";
  std::string lines;
  for (const char character : bytes) {
    stream.line += character;
    if (character != '\n' && character != '\r') continue;
    lines += prefix + stream.line;
    stream.line.clear();
  }
  show(error, lines);
}

void RankOutputWriter::on_time(std::chrono::steady_clock::time_point now) {
  if (options_.prefix) return;
  for (auto& [key, stream] : streams_) {
    if (stream.line.empty()) continue;
    if (!stream.waits_since) stream.waits_since = now;
    if (now - *stream.waits_since < kLongestWait) continue;
    show(key.second, stream.line);
    stream.line.clear();
    stream.waits_since.reset();
  }
}

void RankOutputWriter::finish() {
  for (auto& [key, stream] : streams_) {
    if (stream.line.empty()) continue;
    const auto& [rank, error] = key;
    show(error, options_.prefix ? fmt::format("{}:{}: {}\n", stream.host, rank, stream.line)
                                : stream.line);
    stream.line.clear();
  }
}

void RankOutputWriter::show(bool error, std::string_view bytes) {
  if (bytes.empty()) return;
  write_all(error ? options_.error : options_.output, error ? "standard error" : "standard output",
            bytes);
}

void RankOutputWriter::write_all(int descriptor, const std::string& name, std::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t count = ::write(descriptor, bytes.data(), bytes.size());
    if (count >= 0) {
      bytes.remove_prefix(static_cast<std::size_t>(count));
    } else if (errno == EAGAIN) {  // another process has made a terminal or a pipe non-blocking
      pollfd entry{descriptor, POLLOUT, 0};
      ::poll(&entry, 1, -1);
    } else if (errno != EINTR) {
      const bool reader_is_gone = errno == EPIPE;
      if (!reader_is_gone && failure_.empty()) failure_ = name + ": " + std::strerror(errno);
      return;
    }
  }
}

int RankOutputWriter::file_of(int rank) {
  UniqueFd& file = files_[rank];
  if (!file) {
    const std::string path = path_of(rank);
    file.reset(::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW, 0600));
    if (!file) refuse_folder(path);
  }
  return file.get();
}

LiveView::LiveView(const std::vector<JobHost>& hosts, Moment now, int generation)
    : start_(now), generation_(generation) {
  for (const JobHost& host : hosts) {
    host_names_.push_back(printable(host.name));
    ranks_.resize(ranks_.size() + static_cast<std::size_t>(host.ranks),
                  Rank{.host = host_names_.back()});
  }
}

void LiveView::on_message(std::size_t host, const Message& message, Moment now) {
  if (host >= host_names_.size()) return;
  if (const auto* const arrivals = std::get_if<ArrivalsSeen>(&message)) {
    note(*arrivals, now);
  } else if (const auto* const started = std::get_if<RankStarted>(&message)) {
    Rank* const known = rank(started->rank);
    if (known) *known = Rank{.host = host_names_[host], .started = true};
  } else if (const auto* const seen = std::get_if<RankSeen>(&message)) {
    Rank* const known = rank(seen->rank);
    if (!known) return;
    known->seen = *seen;
    known->seen->collective = printable(seen->collective);
    known->seen->phase = printable(seen->phase);
  } else if (const auto* const stopped = std::get_if<RankStopped>(&message)) {
    if (Rank* const known = rank(stopped->rank)) known->stopped = stopped->stopped;
  } else if (const auto* const ended = std::get_if<RankEnded>(&message)) {
    if (Rank* const known = rank(ended->rank)) known->ended = true;
  }
}

LiveView::Rank* LiveView::rank(int number) {
  const bool exists = number >= 0 && static_cast<std::size_t>(number) < ranks_.size();
  return exists ? &ranks_[static_cast<std::size_t>(number)] : nullptr;
}

void LiveView::note(const ArrivalsSeen& seen, Moment now) {
  if (arrivals_at_ && seen.steps >= steps_ && now > *arrivals_at_) {
    steps_a_second_ = static_cast<double>(seen.steps - steps_) /
                      std::chrono::duration<double>(now - *arrivals_at_).count();
  }
  arrivals_at_ = now;
  steps_ = seen.steps;
  decisions_ = seen.decisions;
  most_often_last_ = nullptr;
  for (Rank& each : ranks_) each.late = {};
  for (const wire::ArrivalsRow& row : seen.rows) {
    Rank* const known = rank(row.rank());
    if (!known) continue;
    known->late = row;
    if (row.last() > 0 && &row == seen.rows.data()) most_often_last_ = known;
  }
}

std::string LiveView::state_of(const Rank& rank) {
  if (rank.ended) return "ended";
  if (rank.stopped) return "stopped";
  if (!rank.seen) return rank.started ? "started" : "not started";
  if (rank.seen->state == kNotBegun) return "before hora::init";
  const auto state = static_cast<RecordState>(rank.seen->state);
  if (state > internal::last_of<RecordState>) return "unknown";
  if (state == RecordState::starting) return "in hora::init";
  if (state != RecordState::initialised) return std::string(name_of(state));
  const std::string idle = rank.seen->idle_ms < kIdleMilliseconds
                               ? ""
                               : ", idle " + span_text(Moment(rank.seen->idle_ms));
  return (rank.seen->waits ? "waits" : "runs") + idle;
}

std::array<std::string, 4> LiveView::lateness_of(const Rank& rank) const {
  const wire::ArrivalsRow& row = rank.late;
  if (row.last() == 0) return {};
  const double share = 100.0 * row.last() / std::max<double>(1, static_cast<double>(decisions_));
  return {
      fmt::format("{:.0f} %", share), fmt::format("{:.3g} ms", row.median_ms()),
      fmt::format("{:.3g} ms", row.p99_ms()),
      std::string(row.phase() < internal::kStepPhases ? internal::kPhaseNames[row.phase()] : "")};
}

/// How far the job is, and who came last most often.
std::string LiveView::progress(Moment now) const {
  std::string text = generation_ > 1 ? fmt::format("generation {}, ", generation_) : "";
  text += span_text(now - start_);
  if (!arrivals_at_) return text;
  const std::string rate =
      steps_a_second_ > 0 ? fmt::format(", {:.3g} a second", steps_a_second_) : "";
  text += fmt::format(": step {}{}, {} decisions", steps_, rate, decisions_);
  if (most_often_last_ == nullptr) return text;
  const auto [share, median, p99, phase] = lateness_of(*most_often_last_);
  return text + fmt::format("; most often last: rank {} (host {}), {}, median {}, p99 {}{}",
                            most_often_last_ - ranks_.data(), most_often_last_->host, share, median,
                            p99, phase.empty() ? "" : ", mostly in " + in_quotes(phase));
}

std::vector<std::string> LiveView::cells_of(std::size_t number) const {
  const Rank& rank = ranks_[number];
  const RankSeen seen = rank.seen.value_or(RankSeen());
  auto [share, median, p99, phase] = lateness_of(rank);
  return {std::to_string(number),
          rank.host,
          rank.seen ? std::to_string(seen.submitted) : "",
          cut_front(seen.collective, kWidestCell),
          std::move(share),
          std::move(median),
          std::move(p99),
          std::move(phase),
          state_of(rank),
          fmt::format("{:.{}}", seen.phase, kWidestCell)};
}

std::string LiveView::table(Moment now) const {
  std::vector<std::size_t> ranks(ranks_.size());
  std::iota(ranks.begin(), ranks.end(), std::size_t{0});
  if (ranks.size() > kMostRows) {
    std::ranges::stable_sort(ranks, std::greater(),
                             [&](std::size_t rank) { return ranks_[rank].late.last(); });
    ranks.resize(kMostRows);
    std::ranges::sort(ranks);
  }
  std::vector<std::vector<std::string>> lines{kHeadings};
  for (const std::size_t rank : ranks) lines.push_back(cells_of(rank));
  const std::size_t more = ranks_.size() - ranks.size();
  return fmt::format("horarun: {}\n{}{}", progress(now), aligned(lines, kAlignment),
                     more > 0 ? fmt::format("and {} more ranks\n", more) : "");
}

int run_launcher(LauncherOptions options) {
  ::signal(SIGPIPE, SIG_IGN);
  return Launcher(options).run();
}

}  // namespace hora::launch
