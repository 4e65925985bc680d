#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <functional>
#include <vector>

#include "core/launch/supervisor/supervisor.h"

namespace hora::launch {
namespace {

using std::chrono::milliseconds;
using testing::AllOf;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;
using testing::StartsWith;

constexpr std::uint64_t kMiB = std::uint64_t{1} << 20;
constexpr RankNeeds kNeeds{.shared_memory = 8 * kMiB, .memory = 32 * kMiB};

/// A host that has enough of everything.
PreparedHost host(const std::string& name, int ranks = 2) {
  PreparedHost host{.name = name,
                    .ranks = ranks,
                    .version = HORA_VERSION,
                    .architecture = "x86_64",
                    .answer = {}};
  host.answer.cores = "2 ranks on 4 cores";
  host.answer.memory = 1000 * kMiB;
  host.answer.shared_memory = 1000 * kMiB;
  return host;
}

/// With a clock that is `seconds` ahead of the launcher's; asked and answered then.
PreparedHost at(const std::string& name, double seconds, int asked, int answered) {
  PreparedHost result = host(name);
  result.asked = milliseconds(asked);
  result.answered = milliseconds(answered);
  const double read = (asked + answered) / 2e3;
  result.answer.clock_ns =
      1'700'000'000'000'000'000 + static_cast<std::int64_t>((read + seconds) * 1e9);
  return result;
}

std::vector<std::string> problems(const std::vector<PreparedHost>& hosts) {
  return problems_of(hosts, kNeeds);
}

/// A host "b" like host(), but for one thing.
PreparedHost other(int ranks, const std::function<void(PreparedHost&)>& change) {
  PreparedHost b = host("b", ranks);
  change(b);
  return b;
}

TEST(ProblemsOfHosts, SayWhatWasFoundWhatIsNeededAndWhatToDo) {
  EXPECT_THAT(problems({}), IsEmpty());
  struct Case {
    PreparedHost b;
    std::vector<std::string> problems;  ///< a part of each
  };
  const std::vector<Case> cases{
      {host("b"), {}},
      {other(2,
             [](auto& b) {
               b.answer.problems = {"no program", "no folder"};
             }),
       {"host b: no program", "host b: no folder"}},
      // Its answer may mean something else.
      {other(2, [](auto& b) { b.version = "0.0.1", b.answer = {}; }),
       {"host b: it has hora 0.0.1, this host has " HORA_VERSION "; install the same version"}},
      {other(2, [](auto& b) { b.architecture = "aarch64"; }),
       {"host b: its processors are aarch64, those of host a are x86_64"}},
      {other(4, [](auto& b) { b.answer.shared_memory = 32 * kMiB; }), {}},
      {other(4, [](auto& b) { b.answer.shared_memory = 32 * kMiB - 1; }),
       {"host b: /dev/shm has 31 MiB left, its 4 ranks need 32 MiB; remove what lies there"}},
      {other(1, [](auto& b) { b.answer.memory = 32 * kMiB; }), {}},
      {other(1, [](auto& b) { b.answer.memory = 32 * kMiB - 1; }),
       {"host b: 31 MiB of memory are available, its rank needs 32 MiB; end what else"}},
      {other(1, [](auto& b) { b.answer.memory = 0; }), {}},  // unknown
      {other(0, [](auto& b) { b.answer.shared_memory = 0, b.answer.memory = 1; }), {}}};
  for (const Case& each : cases) {
    const auto found = problems({host("a"), each.b});
    ASSERT_EQ(found.size(), each.problems.size()) << testing::PrintToString(found);
    for (std::size_t i = 0; i < found.size(); ++i) {
      EXPECT_THAT(found[i], HasSubstr(each.problems[i]));
    }
  }
}

TEST(ClockWarning, NamesTheHostsAndTheDifferences) {
  EXPECT_THAT(
      clock_warning(std::vector{at("a", 0, 0, 20), at("b", 2.5, 100, 120), at("c", -1.7, 5, 45),
                                at("d", 0.1, 0, 10)})
          .value_or(""),
      AllOf(HasSubstr("compared with host a, that of host b is 2.5 s ahead (known to within 0.02 "
                      "s), that of host c is 1.7 s behind (known to within 0.03 s)"),
            Not(HasSubstr("host d")), HasSubstr("NTP")));
  std::vector<PreparedHost> hosts{at("a", 0, 0, 2)};
  for (int i = 0; i < 100; ++i) hosts.push_back(at("b" + std::to_string(i), 5 + i, 0, 2));
  EXPECT_THAT(clock_warning(hosts).value_or(""), HasSubstr(" and 92 more;"));
}

TEST(CoresLine, SaysTheSameOnce) {
  EXPECT_EQ(cores_line(std::vector{host("a")}), "cores: 2 ranks on 4 cores");
  EXPECT_EQ(cores_line(std::vector{host("a"), host("b")}),
            "cores: on each of 2 hosts 2 ranks on 4 cores");
  PreparedHost c = host("c", 1);
  c.answer.cores = "1 rank on 8 cores";
  EXPECT_EQ(cores_line(std::vector{host("a"), c, host("b")}),
            "cores: a, b: 2 ranks on 4 cores; c: 1 rank on 8 cores");
  EXPECT_EQ(cores_line(std::vector{host("a", 0), c}), "cores: 1 rank on 8 cores")
      << "a host without ranks";
}

const std::vector<std::string> kSsh{"ssh",    "-p", "22022", "b", "--", "/opt/my hora/horarun",
                                    "--agent"};
const std::vector<std::string> kSrun{"srun", "--nodelist=b", "/opt/horarun", "--agent"};

TEST(MissingAgent, WhatWasTriedCanBeTypedAndWhatToDoFollows) {
  EXPECT_EQ(tried_text(kSsh), "; tried: ssh -p 22022 b -- '/opt/my hora/horarun' --agent");
  EXPECT_EQ(tried_text({}), "") << "it comes by itself";
  EXPECT_EQ(start_advice({}, {}), "");
  EXPECT_EQ(
      start_advice({.how = {}, .status = 127 << 8}, std::vector<std::string>{"horarun", "--agent"}),
      "; tried: horarun --agent");
  const std::string install = "install hora on that host";
  for (const auto& [command, status, expected] :
       {std::tuple(kSsh, std::optional(255 << 8), std::string("ssh must log in there without")),
        std::tuple(kSsh, std::optional(126 << 8), install),
        std::tuple(kSsh, std::optional(127 << 8), install),
        std::tuple(kSrun, std::optional(127 << 8), install),
        std::tuple(kSrun, std::optional(1 << 8), std::string("sinfo")),
        std::tuple(kSsh, std::optional(SIGKILL), std::string("ssh must log in there without")),
        std::tuple(kSsh, std::optional<int>(), std::string("install ssh on this host"))}) {
    const std::string advice = start_advice({.how = {}, .status = status}, command);
    EXPECT_THAT(advice, StartsWith(tried_text(command) + "; "));
    EXPECT_THAT(advice, HasSubstr(expected));
    EXPECT_EQ(advice.find(install) != advice.npos, install == expected) << advice;
  }
}

}  // namespace
}  // namespace hora::launch
