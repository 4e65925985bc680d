// Jobs as the supervisor sees them, and all that comes of each, word for word (texts.txt); what is
// shown of their ranks.
#include "core/launch/supervisor/supervisor.h"

#include <fcntl.h>
#include <fmt/ranges.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <signal.h>
#include <unistd.h>

#include <array>
#include <functional>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "core/flight/flight_recorder.h"
#include "core/launch/control/system.h"
#include "core/launch/guard/guard.h"
#include "core/launch/network/network.h"
#include "core/launch/supervisor/launcher.h"
#include "tests/core/launch/network/hosts_under_test.h"
#include "tests/core/launch/texts.h"
#include "tests/support/expect_error.h"

namespace hora::launch {
namespace {

using internal::RecordState;

/// The status of a process that has ended by exit(`status`), as waitpid(2) gives it.
constexpr int exited(int status) {
  return status << 8;
}

template <class... Fields>
RankEnded ended(int rank, int status, std::int64_t time = 0, const Fields&... fields) {
  return test::made<RankEnded>(&RankEnded::rank, rank, &RankEnded::pid, 4711, &RankEnded::status,
                               status, &RankEnded::ended_ns, time, &RankEnded::lived_ms, 12345U,
                               fields...);
}

TEST(EndingText, SaysHowARankEndedAndWhatItHasSaid) {
  constexpr auto cause = &RankEnded::cause, words = &RankEnded::last_words;
  constexpr auto init = &RankEnded::initialized, shut_down = &RankEnded::shut_down;
  const std::string loss = "loss 1.5\n", no_data = loss + "train: no data on rank 2";
  std::string text;
  for (const RankEnded& each :
       {ended(3, SIGKILL, 0, &RankEnded::phase, "epoch 2, step 7", words, loss + "loss 1.4"),
        ended(0, exited(3), 0, cause, "no such file: data\x1b[31m"),
        // main() has said more of the error that it caught.
        ended(2, exited(12), 0, cause, "an exception left the scope", words, no_data),
        ended(2, exited(12), 0, cause, "no data on rank 2", words, no_data),
        ended(3, SIGKILL, 0, &RankEnded::out_of_memory, true, words, "loss 1.5"),
        ended(1, exited(127), 0, &RankEnded::pid, 0, &RankEnded::failure,
              "./train: Permission denied"),
        // A shutdown is needed where there was an init.
        ended(1, exited(0)), ended(1, exited(0), 0, init, true),
        ended(1, exited(0), 0, init, true, cause, "HORA_CHUNK_SIZE=x"),  // on all ranks
        ended(1, exited(0), 0, init, true, cause, "HORA_CHUNK_SIZE=x", shut_down, true),
        ended(1, exited(2)), ended(1, SIGSEGV)}) {
    text += fmt::format("{} {} {}\n", ended_well(each), exit_status(each), ending_text(each, "b"));
  }
  test::expect_texts("how a rank ended", text);
}

TEST(FirstCause, IsTheEarliestThatFollowsFromNoOther) {
  constexpr auto told = &RankEnded::peer_failed, guard = &RankEnded::guard_killed;
  constexpr auto asked = &RankEnded::asked_ns, since = &RankEnded::cause_ns;
  constexpr auto failure = &RankEnded::failure, cause = &RankEnded::cause;
  constexpr auto by_mpi = &RankEnded::asked_by_mpi;
  const RankEnded of_error = ended(0, exited(1), 10, cause, "no data", since, 9);
  const RankEnded was_told = ended(0, exited(10), 3, told, true);
  const RankEnded by_parent = ended(2, SIGKILL, 1, failure, "MPI's process has ended");
  std::string text;
  for (const auto& all : std::vector<std::vector<RankEnded>>{
           {ended(0, exited(0), 1), ended(1, exited(1), 30), ended(2, exited(1), 20)},
           {ended(0, exited(0), 1)},
           {ended(0, SIGTERM, 1, asked, 4), ended(1, exited(143), 2, asked, 4),
            ended(2, exited(3), 30)},
           {ended(0, SIGTERM, 1, asked, 4)},
           // MPI has asked before it ended, or after.
           {ended(0, SIGTERM, 6, asked, 4, by_mpi, true), ended(1, exited(14), 5)},
           {ended(0, SIGTERM, 6, asked, 4, by_mpi, true), ended(1, exited(14), 3)},
           {ended(0, SIGTERM, 6, asked, 4, by_mpi, true), of_error},
           {by_parent, ended(1, SIGPIPE, 2), ended(0, exited(3), 30)},
           {ended(1, SIGPIPE, 2)},
           // All end by the exception of one, which may outlive those that it has told.
           {was_told, ended(1, exited(1), 300), ended(2, SIGABRT, 2, told, true)},
           // MPI ends the others as soon as the first of them has ended.
           {was_told, ended(2, SIGTERM, 5, cause, "no data", since, 2, asked, 4)},
           {was_told, ended(2, SIGTERM, 5, cause, "no data", since, 5, asked, 4)},
           {was_told, ended(1, SIGKILL, 2, failure, "its guard was killed", guard, true), by_parent,
            ended(3, SIGABRT, 3)},
           // An error is as old as its record; a signal comes before errors.
           {of_error, ended(1, exited(1), 20, cause, "no data", since, 5)},
           {of_error, ended(1, exited(1), 20, cause, "no data", since, 10)},
           {of_error, ended(1, SIGSEGV, 20, cause, "no data", since, 10)},
           {of_error, ended(1, SIGPIPE, 20, cause, "no data", since, 10)}}) {
    const auto first = first_cause(all);
    text += first ? fmt::format("rank {}", all[*first].rank) : "none";
    text += first && is_likely_consequence(all[*first]) ? " as a consequence\n" : "\n";
  }
  test::expect_texts("which rank is the first cause", text);
}

TEST(FirstCauseText, BeginsWithTheRankThatOthersHaveWaitedFor) {
  constexpr auto told = &RankEnded::peer_failed;
  constexpr auto asked = &RankEnded::asked_ns;
  const RankEnded last =
      ended(3, SIGABRT, 0, told, true, &RankEnded::phase, "epoch 2", &RankEnded::cause,
            "rank 0 (host a, pid 4) did not come to tensor \"x\" within 60 s");
  const std::vector<RankEnded> all{ended(0, SIGTERM, 0, told, true, asked, 7),
                                   ended(1, SIGABRT, 0, told, true),
                                   ended(2, SIGABRT, 0, told, true), last};
  test::expect_texts("the first cause", first_cause_text(all, last, "a") + "\n" +
                                            first_cause_text(all, ended(2, exited(3)), "a"));
}

TEST(JobEnding, KeepsOnlyTheEndOfALongOutput) {
  JobEnding ending(2, {});
  ending.on_output("beginning");
  ending.on_output(std::string(20000, 'x') + "end");
  EXPECT_THAT(ending.output(), testing::AllOf(testing::Not(testing::HasSubstr("beginning")),
                                              testing::EndsWith("end")));
}

constexpr std::uint64_t kMiB = std::uint64_t{1} << 20;

/// A host that has enough of everything.
PreparedHost prepared_host(const std::string& name, int ranks = 2) {
  PreparedHost host{.name = name,
                    .ranks = ranks,
                    .version = HORA_VERSION,
                    .architecture = "x86_64",
                    .answer = {}};
  host.answer.cores = "2 ranks on 4 cores";
  host.answer.memory = host.answer.shared_memory = 1000 * kMiB;
  return host;
}

/// With a clock that is `seconds` ahead of the launcher's; asked and answered then.
PreparedHost with_clock(const std::string& name, double seconds, int asked, int answered) {
  PreparedHost result = prepared_host(name);
  result.asked = Moment(asked);
  result.answered = Moment(answered);
  const double read = (asked + answered) / 2e3;
  result.answer.clock_ns =
      1'700'000'000'000'000'000 + static_cast<std::int64_t>((read + seconds) * 1e9);
  return result;
}

TEST(PreparedHosts, SayWhatWasFoundWhatIsNeededAndWhatToDo) {
  struct Case {
    int ranks;
    std::function<void(PreparedHost&)> change;
  };
  std::string text;
  for (const Case& each :
       std::vector<Case>{{2, [](auto&) {}},
                         {2,
                          [](auto& b) {
                            b.answer.problems = {"no program", "no folder"};
                          }},
                         // Its answer may mean something else.
                         {2, [](auto& b) { b.version = "0.0.1", b.answer = {}; }},
                         {2, [](auto& b) { b.architecture = "aarch64"; }},
                         {4, [](auto& b) { b.answer.shared_memory = 32 * kMiB; }},
                         {4, [](auto& b) { b.answer.shared_memory = 32 * kMiB - 1; }},
                         {1, [](auto& b) { b.answer.memory = 32 * kMiB; }},
                         {1, [](auto& b) { b.answer.memory = 32 * kMiB - 1; }},
                         {1, [](auto& b) { b.answer.memory = 0; }},  // unknown
                         {0, [](auto& b) { b.answer.shared_memory = 0, b.answer.memory = 1; }}}) {
    PreparedHost b = prepared_host("b", each.ranks);
    each.change(b);
    const std::vector hosts{prepared_host("a"), b};
    const auto problems = problems_of(hosts, {.shared_memory = 8 * kMiB, .memory = 32 * kMiB});
    text += problems.empty() ? "fit\n" : fmt::format("{}\n", fmt::join(problems, "\n"));
  }
  test::expect_texts("hosts that do not fit", test::with(text, HORA_VERSION, "VERSION"));
  EXPECT_TRUE(problems_of({}, {}).empty());
}

TEST(PreparedHosts, OfWhichClocksDifferAreNamed) {
  const std::vector few{with_clock("a", 0, 0, 20), with_clock("b", 2.5, 100, 120),
                        with_clock("c", -1.7, 5, 45), with_clock("d", 0.1, 0, 10)};
  std::vector<PreparedHost> many{with_clock("a", 0, 0, 2)};
  for (int i = 0; i < 100; ++i) many.push_back(with_clock(fmt::format("b{}", i), 5 + i, 0, 2));
  test::expect_texts("clocks that differ",
                     clock_warning(few).value_or("") + "\n" + clock_warning(many).value_or(""));
}

TEST(PreparedHosts, OfTheSameCoresAreNamedTogether) {
  const PreparedHost a = prepared_host("a"), b = prepared_host("b"), none = prepared_host("a", 0);
  PreparedHost c = prepared_host("c", 1);
  c.answer.cores = "1 rank on 8 cores";
  std::string text;
  for (const auto& hosts :
       std::vector<std::vector<PreparedHost>>{{a}, {a, b}, {a, c, b}, {none, c}}) {
    text += cores_line(hosts) + "\n";
  }
  test::expect_texts("cores of hosts", text);
}

TEST(MissingAgent, WhatWasTriedCanBeTypedAndWhatToDoFollows) {
  using Command = std::vector<std::string>;
  const Command ssh{"ssh", "-p", "22022", "b", "--", "/opt/my hora/horarun", "--agent"};
  const Command srun{"srun", "--nodelist=b", "/opt/horarun", "--agent"};
  EXPECT_EQ(tried_text({}), "");  // it comes by itself
  std::string text;
  for (const auto& [command, status] :
       std::vector<std::pair<Command, std::optional<int>>>{{{}, {}},
                                                           {{"horarun", "--agent"}, exited(127)},
                                                           {ssh, exited(255)},
                                                           {ssh, exited(126)},
                                                           {ssh, exited(127)},
                                                           {ssh, SIGKILL},
                                                           {ssh, {}},
                                                           {srun, exited(127)},
                                                           {srun, exited(1)}}) {
    text += start_advice({.how = {}, .status = status}, command) + "\n";
  }
  test::expect_texts("agents that are missing", text);
}

/// A job of two hosts, a and b, with two ranks each; and all that its supervisor does.
class SupervisorTest : public testing::Test {
 protected:
  using Event = std::function<void()>;

  SupervisorTest() {
    plan_.hosts = {{"a", 2, {"horarun", "--agent"}},
                   {"b", 2, {"ssh", "b", "--", "horarun", "--agent"}}};
    plan_.preparation.program = "./train";
    plan_.nonce = 5;
    plan_.mpirun = [](const NetworkChoice* network) {
      Start start;
      start.arguments = {"mpirun", network == nullptr ? "" : network->line};
      return start;
    };
    plan_.daemon_environment = [](std::size_t, const NetworkChoice*) {
      return std::vector<std::string>{"NAME=value"};
    };
  }

  static std::string text_of(const Message& message) {
    if (const auto* end = std::get_if<EndAll>(&message)) {
      return fmt::format("EndAll signal={} grace={} ms status={}{}", end->signal, end->grace_ms,
                         end->status, end->keep ? " keep" : "");
    }
    if (std::holds_alternative<GiveWay>(message)) return "GiveWay";
    if (const auto* start = std::get_if<Start>(&message)) {
      return fmt::format("Start {} {} {}", start->arguments, start->text, start->environment);
    }
    if (const auto* prepare = std::get_if<Prepare>(&message)) {
      return fmt::format("Prepare {} ranks={}", prepare->program, prepare->ranks);
    }
    if (const auto* tell = std::get_if<TellNetwork>(&message)) {
      return fmt::format("TellNetwork {} {}", tell->host, tell->nonce);
    }
    std::string text = "TryNetwork";
    for (const wire::NetworkTarget& each : std::get<TryNetwork>(message).targets) {
      text += fmt::format(" {}.{}={}", each.host(), each.index(),
                          to_string(Endpoint{{each.address()}, each.port()}));
    }
    return text;
  }
  void gather(const std::vector<Instruction>& actions) {
    for (const Instruction& action : actions) {
      text_ += fmt::format("{:7.1f} s: ", static_cast<double>(now_.count()) / 1e3);
      if (const auto* say = std::get_if<Say>(&action)) {
        text_ += (say->verbose ? "says if verbose: " : "says: ") + say->text + "\n";
      } else if (const auto* send = std::get_if<SendTo>(&action)) {
        text_ += fmt::format("to {}: {}\n", plan_.hosts[send->host].name, text_of(send->message));
      } else {
        const auto& [status, loss] = std::get<Finish>(action);
        text_ += fmt::format("ends with {}\n", status);
        if (!loss) continue;
        text_ += fmt::format("    lost: hosts {}, rank {}, step {} of {}, by: {}\n", loss->hosts,
                             loss->rank, loss->step, loss->reached, loss->text);
      }
    }
  }
  void message(std::size_t host, const Message& message) {
    gather(supervisor_->on_message(host, message, now_));
  }
  void pass(int ms) {
    for (const Moment end = now_ + Moment(ms); now_ < end;) {
      now_ += Moment(100);
      gather(supervisor_->on_time(now_));
    }
  }
  void tell_network(std::size_t host, bool have_any = true) {
    HostNetwork network =
        host == 0 ? test::host("a", {test::docker0(), test::interface("eth0", "10.77.0.1/24")})
                  : test::host("b", {test::docker0(), test::interface("ens3", "10.77.0.2/24")});
    for (HostAddress& each : network.addresses) each.port = each.is_candidate() ? 1000 : 0;
    if (!have_any) network.addresses.clear();
    message(host, to_message(network));
  }
  void try_networks() {
    tell_network(0), tell_network(1);
    for (std::uint32_t host = 0; host < 2; ++host) {
      message(host, NetworkTried{{}, {ProbePair(2, 1 - host, 2), ProbePair(7, 9, 7)}});
    }
  }
  /// Until the networks are to be tried.
  void prepare() {
    for (std::size_t host = 0; host < 2; ++host) message(host, Hello{{}, HORA_VERSION});
    for (std::size_t host = 0; host < 2; ++host) message(host, Prepared());
  }

  // Events. Those of a rank come from the host where it is.
  Event after(int ms) {
    return [=, this] { pass(ms); };
  }
  Event comes(std::size_t host, const Message& body) {
    return [=, this] { message(host, body); };
  }
  Event greets(std::size_t host, const std::string& version = HORA_VERSION) {
    return comes(host, Hello{{}, version});
  }
  Event prepared(std::size_t host, int clock_s = 0, const std::vector<std::string>& problems = {}) {
    return comes(host,
                 test::made<Prepared>(&Prepared::cores, "2 ranks on 4 cores", &Prepared::clock_ns,
                                      clock_s * 1'000'000'000LL, &Prepared::problems, problems));
  }
  Event is_lost(std::size_t host, const std::string& how = {}) {
    return [=, this] { gather(supervisor_->on_lost(host, {.how = how, .status = {}}, now_)); };
  }
  Event is_asked_to_give_way() {
    return [this] { gather(supervisor_->give_way("host c has come")); };
  }
  Event signalled(int number) {
    return [=, this] { gather(supervisor_->on_signal(number, now_)); };
  }
  /// The hosts say so often that they are there.
  Event beats(std::vector<std::size_t> hosts, int times, int ms) {
    return [=, this] {
      for (int i = 0; i < times; ++i) {
        pass(ms);
        for (const std::size_t host : hosts) message(host, Heartbeat{});
      }
    };
  }
  Event ends(RankEnded rank) {
    return [=, this]() mutable {
      rank.pid = 100 + rank.rank;
      rank.ended_ns = now_.count() + 1;
      message(host_of(rank.rank), rank);
    };
  }
  Event ends(int rank, int status) { return ends(ended(rank, status)); }
  Event is_in(RecordState state, int rank) {
    return comes(host_of(rank), test::made<RankSeen>(&RankSeen::rank, rank, &RankSeen::state,
                                                     static_cast<std::uint8_t>(state)));
  }
  Event stops(int rank, bool stopped = true) {
    return comes(host_of(rank), RankStopped{{}, rank, stopped});
  }
  Event mpirun_says(const std::string& text) {
    return comes(0, ProcessOutput{{}, 0, false, {text.begin(), text.end()}});
  }
  Event daemon_ends(int status) { return comes(1, ProcessEnded{{}, 1, status}); }
  Event mpirun_ends(int status) { return comes(0, ProcessEnded{{}, 0, status}); }
  Event asks_for_daemon(const std::string& host) {
    return comes(0, StartRemote{{}, 0, host, "orted -mca x y"});
  }
  /// All ranks run.
  Event start() {
    return [this] {
      prepare(), try_networks();
      for (int rank = 0; rank < 2 * plan_.hosts[0].ranks; ++rank) {
        message(host_of(rank), RankStarted{{}, rank, 100 + rank});
      }
      text_.clear();
    };
  }
  /// Both agents answer, but not over the network, whose interfaces may be down.
  Event cut(bool is_up = true) {
    return [=, this] {
      pass(2500);
      tell_network(0, is_up), tell_network(1, is_up);
      for (std::size_t host = 0; host < 2; ++host) message(host, NetworkTried());
    };
  }

  std::string text_of(const std::vector<Event>& events) {
    now_ = Moment(0);
    supervisor_.emplace(plan_, now_);
    text_.clear();
    for (const Event& event : events) event();
    return text_;
  }

  std::size_t host_of(int rank) const {
    return static_cast<std::size_t>(rank / plan_.hosts[0].ranks);
  }

  JobPlan plan_;
  Moment now_{0};
  std::optional<Supervisor> supervisor_;
  std::string text_;
};

TEST_F(SupervisorTest, DoesAndSaysWhatTheJobNeeds) {
  constexpr auto asked = &RankEnded::asked_ns;
  constexpr auto shut_down = &RankEnded::shut_down;
  const Event prepares = [this] { prepare(), text_.clear(); };
  const Event a_tells = [this] { tell_network(0); }, b_tells = [this] { tell_network(1); };
  const Event b_has_none = [this] { tell_network(1, false); };
  const Event tries = [this] { try_networks(); };
  const Event checks = [this] {  // the network, for the first time
    pass(100), try_networks(), text_.clear();
  };
  const Event waits = comes(0, test::made<RankSeen>(&RankSeen::rank, 1, &RankSeen::state,
                                                    std::uint8_t{1}, &RankSeen::overdue, true));
  const auto leaves = [&](int rank, int status, bool has_shut_down = true) {
    return ends(ended(rank, status, 0, asked, 1, &RankEnded::initialized, has_shut_down, shut_down,
                      has_shut_down));
  };
  const auto after_termination = [&](const Event& last) {
    return std::vector<Event>{start(),
                              signalled(SIGTERM),
                              leaves(0, exited(75)),
                              leaves(1, exited(75)),
                              leaves(2, exited(75)),
                              last,
                              is_lost(0),
                              is_lost(1)};
  };
  std::vector<Event> strange{start()};
  for (const int rank : {-1, 4, 1 << 30}) {
    strange.push_back(comes(0, RankStarted{{}, rank}));
    strange.push_back(comes(0, RankStopped{{}, rank, true}));
    strange.push_back(comes(0, test::made<RankEnded>(&RankEnded::rank, rank)));
  }
  std::string text;
  for (const auto& [name, events] : std::vector<std::pair<const char*, std::vector<Event>>>{
           {"mpirun starts on the first host when all are prepared",
            {greets(0), prepared(0), greets(1), prepared(1), tries}},
           {"clocks differ", {greets(0), greets(1), prepared(0, 1), prepared(1, 4)}},
           {"by no more than the answers took",
            {greets(0), greets(1), prepared(0, 1), after(3000), prepared(1, 4)}},
           {"networks that are not tried in time are guessed",
            {prepares, a_tells, b_tells, after(2500)}},
           {"a host does not tell its network", {prepares, a_tells, after(2500)}},
           {"a host has no network", {prepares, a_tells, b_has_none, after(2500)}},
           {"a daemon is started by its host's agent",
            {start(), asks_for_daemon("b"), asks_for_daemon("c")}},
           {"all problems of all hosts are said before the start",
            {greets(0, "0.0.1"), greets(1), prepared(0), prepared(1, 0, {"no program"}), is_lost(0),
             is_lost(1)}},
           {"a host does not start in time", {greets(0), prepared(0), beats({0}, 7, 5000)}},
           {"a rank stops, and goes on",
            {start(), stops(2), after(1000), stops(2, false), after(1000)}},
           {"a network is cut", {start(), checks, waits, cut(), cut(false), cut()}},
           {"is not looked at while no rank waits long", {start(), checks, after(10'000)}},
           {"of a host that does not answer, or answers again, ends nothing",
            {start(), checks, waits, cut(), cut(), after(2500), tries, cut(), cut(), after(9000)}},
           {"all ranks end well",
            {start(), ends(0, 0), ends(1, 0), ends(2, 0), ends(3, 0), mpirun_ends(0), after(100),
             is_lost(0), is_lost(1)}},
           {"the culprit is named once, and its status returned",
            {start(), ends(2, SIGKILL), ends(ended(3, SIGTERM, 0, asked, 1)), after(600),
             ends(0, exited(1)), ends(1, exited(1)), mpirun_ends(exited(137)),
             is_lost(0, "it has closed the connection"), is_lost(1)}},
           {"a silent host is named, and not waited for",
            {start(), beats({0, 1}, 12, 5000), beats({0}, 8, 4000), is_lost(0)}},
           {"agents that do not end are given up", {start(), signalled(SIGINT), after(12'000)}},
           {"a termination leaves time to save",
            {start(), signalled(SIGTERM), beats({0, 1}, 8, 5000)}},
           {"the status on which ranks agree is the job's, also of one that MPI ends then",
            after_termination(leaves(3, SIGTERM))},
           {"they do not agree", after_termination(leaves(3, exited(1)))},
           {"one has not shut down", after_termination(leaves(3, SIGTERM, false))},
           {"ranks out of range are ignored", strange}}) {
    text += std::string(name) + "\n" + text_of(events);
  }
  for (const test::Line& named : {test::Line{"eth0", "ens3"}, test::Line{"eth0"}}) {
    plan_.network_interfaces = named;
    text += "interfaces are named\n" + text_of({prepares, a_tells, b_tells});
  }
  plan_.hosts = {{"a", 1, {"horarun", "--agent"}}};
  text += "the only rank stops\n" + text_of({stops(0), after(1000)});
  test::expect_texts("what a supervisor does", test::with(text, HORA_VERSION, "VERSION"));
}

TEST_F(SupervisorTest, OfAnElasticJobLosesRanksAndHosts) {
  plan_.elastic = true;
  plan_.generation = 2;
  plan_.recovery = {"rank 1 was killed", Moment(-1500), 42};
  const auto goes_on_at = [&](std::int64_t step) {
    return comes(0, test::made<RankSeen>(&RankSeen::rank, 1, &RankSeen::resumed, step,
                                         &RankSeen::resumable, step));
  };
  const Event a_is_over = comes(0, GenerationEnded()), b_is_over = comes(1, GenerationEnded());
  std::string text;
  for (const auto& [name, events] : std::vector<std::pair<const char*, std::vector<Event>>>{
           {"a rank, after the generation has gone on",
            {start(), goes_on_at(-1), goes_on_at(40), goes_on_at(41), ends(2, SIGKILL), after(600),
             a_is_over, b_is_over}},
           {"a rank before that", {start(), ends(2, SIGKILL), after(600), a_is_over, b_is_over}},
           {"a host", {start(), goes_on_at(40), is_lost(1, "it is gone"), a_is_over}},
           {"a silent one, and one that cannot end what runs",
            {start(), goes_on_at(40), beats({0}, 9, 4000), after(12'000)}},
           {"a program that does not load, said once",
            {start(), is_in(RecordState::initialised, 1), beats({0, 1}, 10, 4000),
             is_in(RecordState::initialised, 2), beats({0, 1}, 10, 4000)}},
           {"what gives way, asked twice",
            {start(), is_asked_to_give_way(), is_asked_to_give_way(), ends(0, 75 << 8),
             ends(2, 75 << 8), after(600), a_is_over, b_is_over}},
           {"a rank of what is to give way",
            {start(), is_asked_to_give_way(), ends(2, SIGKILL), after(600), a_is_over, b_is_over}},
           {"a daemon's host",
            {start(), goes_on_at(40), daemon_ends(SIGKILL), after(600), a_is_over, b_is_over}},
           {"a host that does not start", {greets(0), is_lost(1), a_is_over}},
           {"a host without what its ranks need, for a moment",
            {greets(0), greets(1), prepared(0), prepared(1, 0, {"full"}), after(100), prepared(0),
             prepared(1)}},
           {"the same, for long",
            {greets(0), greets(1), prepared(0), prepared(1, 0, {"full"}), after(5000), prepared(0),
             prepared(1, 0, {"full"})}},
           {"what comes late from the generation before is no end",
            {start(), b_is_over, ends(2, SIGKILL), after(600), a_is_over, b_is_over}},
           {"the user's signal ends the job", {start(), signalled(SIGINT), is_lost(0), is_lost(1)}},
           {"in the middle of a loss, too",
            {start(), ends(2, SIGKILL), after(600), signalled(SIGINT), a_is_over, b_is_over}},
           {"an end without loss ends the job",
            {start(), ends(0, 0), ends(1, 0), ends(2, 0), ends(3, 0), mpirun_ends(0), after(100),
             is_lost(0), is_lost(1)}}}) {
    text += std::string(name) + "\n" + text_of(events);
  }
  test::expect_texts("what an elastic job loses", text);
}

TEST_F(SupervisorTest, FindsTheFirstCauseInTime) {
  using enum RecordState;
  constexpr auto asked = &RankEnded::asked_ns;
  const Event ended_by_mpi = ends(ended(0, SIGTERM, 0, asked, 1, &RankEnded::asked_by_mpi, true));
  const Event ended_by_parent =
      ends(ended(0, SIGKILL, 0, &RankEnded::failure, "MPI's process that started it has ended"));
  const Event says_bye = ends(ended(1, exited(0), 0, &RankEnded::last_words, "bye"));
  plan_.hosts[0].ranks = plan_.hosts[1].ranks = 1;
  plan_.silence = Moment(1'000'000);
  std::string text;
  const auto add = [&](const std::string& name, std::vector<Event> events) {
    events.insert(events.begin(), start());
    events.push_back(after(310'000));
    text += name + "\n" + text_of(events);
  };
  for (const auto& [name, events] : std::vector<std::pair<const char*, std::vector<Event>>>{
           {"over when ranks and mpirun have ended",
            {ends(0, 0), after(100), ends(1, 0), after(100), mpirun_ends(0)}},
           {"over without an mpirun that hangs", {ends(0, 0), ends(1, 0)}},
           {"a failure is no end until it is explained; no more ranks are to come",
            {ends(0, exited(3)), ends(1, 0), mpirun_ends(exited(3))}},
           {"an earlier failure is awaited", {ends(1, exited(1)), after(100), ends(0, SIGKILL)}},
           {"an MPI that did not start is named",
            {mpirun_says("\nFramework: pml\nIt looks like MPI_INIT failed\n"), ends(1, exited(1))}},
           {"another end that this follows from is awaited for longer",
            {ends(ended(1, SIGTERM, 0, asked, 1))}},
           {"an mpirun that asks ranks to end without a reason was ended itself",
            {mpirun_says("a peer of rank 3 has disconnected"), ended_by_mpi}},
           {"so it was where it has lost a daemon",
            {mpirun_says("ORTE has lost communication with a remote daemon."), ended_by_mpi}},
           {"the signal finds the rank gone with what had started it", {ended_by_parent}},
           {"not where mpirun names a rank",
            {mpirun_says("mpirun noticed that process rank 0 exited on signal 9 (Killed)."),
             ended_by_parent}},
           {"a killed daemon is the cause of what follows",
            {daemon_ends(SIGKILL), after(100), mpirun_ends(exited(1)), after(100),
             ends(ended(1, SIGKILL, 0, asked, 1))}},
           {"a daemon that exits is no cause", {daemon_ends(exited(1))}},
           {"a killed mpirun is the cause of ranks that exit shortly before",
            {ends(0, exited(1)), ends(1, exited(1)), after(100), mpirun_ends(SIGKILL)}},
           {"not of one that a signal ended before",
            {ends(0, SIGSEGV), after(100), mpirun_ends(SIGKILL)}},
           {"not of one that exited long before",
            {ends(0, exited(3)), after(600), mpirun_ends(SIGKILL)}},
           {"an mpirun that ends before its ranks has failed",
            {mpirun_says("not for the user"), mpirun_ends(0)}},
           {"who left before init is named where others stay inside",
            {is_in(starting, 0), after(100), says_bye}},
           {"not where they go on",
            {is_in(starting, 0), after(100), says_bye, after(4900), is_in(initialised, 0)}},
           {"who left before init is the cause of what MPI ends",
            {ends(1, 0), mpirun_says("node b exiting\nimproperly."),
             ends(ended(0, SIGTERM, 0, asked, 1))}},
           {"who is late for init is named, and ends the job at last", {is_in(starting, 0)}},
           {"an init of all that does not end is said", {is_in(starting, 0), is_in(starting, 1)}},
           {"who is stopped while others are in shutdown ends the job; nobody waits before",
            {stops(1), after(200'000), is_in(in_shutdown, 0)}},
           {"who is stopped in shutdown itself ends the job",
            {is_in(in_shutdown, 0), is_in(in_shutdown, 1), after(100), stops(0)}},
           {"who runs on, or again, while others are in shutdown may take any time",
            {is_in(in_shutdown, 0), after(200'000), stops(1), after(100), stops(1, false)}},
           {"a job that was stopped as a whole goes on, one rank after the other",
            {is_in(in_shutdown, 0), stops(0), stops(1), after(200'000), stops(0, false), after(100),
             stops(1, false)}}}) {
    add(name, events);
  }
  plan_.ending.waits.init = Moment(1000);
  add("who has ended is not late for init", {is_in(starting, 0), after(100), ends(1, 0)});
  plan_.ending.waits = {.init_warning = Moment(0), .init = Moment(0), .stopped = Moment(0)};
  add("without limits init may take any time", {is_in(starting, 0)});
  add("and so may shutdown", {is_in(in_shutdown, 0), stops(1)});
  test::expect_texts("how jobs end", text);
}

/// A message about a rank; all other fields have their defaults.
template <class Body, class... Fields>
Body of(int rank, const Fields&... fields) {
  return test::made<Body>(&Body::rank, rank, fields...);
}

RankSeen at_work(int rank, RecordState state = RecordState::initialised) {
  return of<RankSeen>(rank, &RankSeen::state, static_cast<std::uint8_t>(state),
                      &RankSeen::submitted, 40U, &RankSeen::collective, "hora.gradients.0.3",
                      &RankSeen::phase, "epoch 2");
}

ArrivalsSeen arrivals(std::uint64_t steps, int most_often_last = 2) {
  ArrivalsSeen message;
  message.decisions = 4 * steps;
  message.steps = steps;
  message.rows = {{static_cast<std::uint32_t>(3 * steps), 4.12F, 9, most_often_last, 1},
                  {static_cast<std::uint32_t>(steps), 0.1F, 0.25F, 0, 0}};
  return message;
}

TEST(LiveView, ShowsARowForEachRank) {
  LiveView job({{"a", 2}, {"b", 1}}, Moment(1000));
  for (const int rank : {0, 1, 2}) job.on_message(rank / 2, of<RankStarted>(rank), Moment(1000));
  for (const int rank : {0, 1, 2}) job.on_message(rank / 2, at_work(rank), Moment(1100));
  job.on_message(0, arrivals(10), Moment(2000));
  job.on_message(0, arrivals(30), Moment(4000));
  test::expect_texts("a watched job", job.table(Moment(5000)));
}

TEST(LiveView, SaysInWhichStateARankIs) {
  LiveView job({{"a", 9}}, Moment(0));
  const auto tell = [&](const Message& message) { job.on_message(0, message, Moment(1)); };
  for (int rank = 1; rank < 9; ++rank) tell(of<RankStarted>(rank));
  RankSeen before = at_work(2), waiting = at_work(4), damaged = at_work(8);
  before.state = kNotBegun;
  waiting.waits = true;
  waiting.idle_ms = 65000;
  damaged.state = 99;
  damaged.collective = damaged.phase = "x\x1b[2J\n";
  for (const RankSeen& each : {before, at_work(3, RecordState::starting), waiting, at_work(5),
                               damaged, at_work(6, RecordState::failed)}) {
    tell(each);
  }
  tell(RankStopped{{}, 5, true});
  tell(of<RankEnded>(7));
  test::expect_texts("states of ranks that are watched", job.table(Moment(5000)));
}

TEST(LiveView, OfManyRanksShowsThoseThatComeLastMostOften) {
  LiveView job({{"a", 100}}, Moment(0));
  for (int rank = 0; rank < 100; ++rank) {
    RankSeen message = at_work(rank);
    message.collective = std::string(90, 'x') + std::to_string(rank) + "\u00e9\u00e9";
    message.phase = std::string(60, 'p') + "\u00e9";
    job.on_message(0, message, Moment(1));
  }
  job.on_message(0, arrivals(10, 93), Moment(2));
  test::expect_texts("many ranks that are watched", job.table(Moment(61000)));
}

TEST(LiveView, IgnoresWhatTheJobDoesNotHave) {
  LiveView job({{"a", 1}}, Moment(0));
  const std::string before = job.table(Moment(0));
  for (const int rank : {-1, 1, 1 << 30}) {
    for (const Message& message :
         {Message(of<RankStarted>(rank)), Message(at_work(rank)),
          Message(RankStopped{{}, rank, true}), Message(of<RankEnded>(rank))}) {
      job.on_message(0, message, Moment(1));
    }
  }
  job.on_message(7, of<RankStarted>(0), Moment(1));
  EXPECT_EQ(job.table(Moment(0)), before);
  ArrivalsSeen strange = arrivals(1, -5);
  strange.decisions = 0;
  job.on_message(0, strange, Moment(1));
  job.on_message(0, arrivals(0), Moment(1));
  EXPECT_THAT(job.table(Moment(1)), testing::Not(testing::HasSubstr("most often")));
}

class RankOutputTest : public testing::Test {
 protected:
  RankOutputOptions options(const std::string& folder = {}) const {
    return {.folder = folder, .output = output_.write.get(), .error = error_.write.get()};
  }
  static std::string contents(const Pipe& pipe) {
    char bytes[1000];
    pollfd entry{pipe.read.get(), POLLIN, 0};
    if (::poll(&entry, 1, 0) <= 0) return {};
    return {bytes, static_cast<std::size_t>(::read(pipe.read.get(), bytes, sizeof bytes))};
  }
  Pipe output_ = make_pipe(), error_ = make_pipe();
};

TEST_F(RankOutputTest, IsPassedOnInWholeLinesButAQuestion) {
  const std::chrono::steady_clock::time_point start{};
  RankOutputWriter writer(options());
  writer.write(0, "a", false, "half a li");
  writer.write(1, "a", true, "error\n");
  EXPECT_EQ(contents(output_), "");
  EXPECT_EQ(contents(error_), "error\n");
  writer.write(0, "a", false, "ne\ncontinue? ");
  EXPECT_EQ(contents(output_), "half a line\n");
  writer.on_time(start);
  writer.on_time(start + std::chrono::milliseconds(199));
  EXPECT_EQ(contents(output_), "");
  writer.on_time(start + std::chrono::milliseconds(200));
  EXPECT_EQ(contents(output_), "continue? ");
  writer.write(0, "a", false, "end");
  writer.finish();
  EXPECT_EQ(contents(output_), "end");
}

TEST_F(RankOutputTest, WaitsForASlowReaderThatDoesNotBlock) {
  ::fcntl(output_.write.get(), F_SETFL, O_NONBLOCK);
  const std::string line = std::string(1 << 20, 'x') + "\n";
  std::size_t read = 0;
  std::jthread reader([&] {
    std::array<char, 65536> bytes;
    while (read < line.size()) {
      read += static_cast<std::size_t>(::read(output_.read.get(), bytes.data(), bytes.size()));
    }
  });
  RankOutputWriter writer(options());
  writer.write(0, "a", false, line);
  EXPECT_EQ(writer.failure(), "");
}

TEST_F(RankOutputTest, AFolderThatCannotBeMadeIsNamed) {
  internal::test::expect_error(ErrorCode::invalid_argument,
                               testing::HasSubstr("--output-filename: /proc/none/logs"),
                               [&] { RankOutputWriter writer(options("/proc/none/logs")); });
}

}  // namespace
}  // namespace hora::launch
