#include "core/launch/supervisor/generation.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>

#include "tests/support/random_draws.h"
#include "tests/support/seed.h"

namespace hora::launch {
namespace {

using namespace std::chrono_literals;
using testing::HasSubstr;
using testing::VariantWith;

const std::vector<HostSlots> kHosts{{"a", 2}, {"b", 2}, {"c", 2}};

/// "a0-1 b2-3", or the text of another answer.
std::string text_of(const std::variant<Generation, WaitForHosts, GiveUp>& next) {
  if (const auto* wait = std::get_if<WaitForHosts>(&next)) {
    return "wait until " + std::to_string(wait->until.count()) + ": " + wait->text;
  }
  if (const auto* end = std::get_if<GiveUp>(&next)) return "end: " + end->text;
  std::string text = std::to_string(std::get<Generation>(next).number) + ":";
  for (const HostRanks& host : std::get<Generation>(next).hosts) {
    text += " " + host.name + std::to_string(host.first) + "-" +
            std::to_string(host.first + host.ranks - 1);
  }
  return text;
}

Generation first_of(const std::vector<HostSlots>& hosts, const ElasticOptions& options) {
  return std::get<Generation>(next_generation(0ms, hosts, {}, options));
}

TEST(NextGeneration, FollowsFromHostsAndEnds) {
  const ElasticOptions options{.min_np = 3, .max_np = 4, .reset_limit = 5, .timeout = 60s};
  const Generation first = first_of(kHosts, options);
  EXPECT_EQ(text_of(first), "1: a0-1 b2-3");
  const auto end = [&](std::vector<std::string> hosts, int rank, std::int64_t step = 10) {
    return GenerationEnd{first, 1s, {.hosts = std::move(hosts), .rank = rank, .step = step}};
  };
  const GenerationEnd killed = end({}, 2), lost_a = end({"a"}, -1), lost_b = end({"b"}, -1),
                      broken = end({}, -1);
  struct Row {
    std::vector<HostSlots> hosts;
    std::vector<GenerationEnd> ended;
    std::chrono::milliseconds now;
    std::string next;
  };
  for (const Row& row : std::vector<Row>{
           {kHosts, {killed}, 1s, "2: a0-1 b2-3"},
           {kHosts, {lost_a}, 1s, "2: b0-1 c2-3"},
           {kHosts, {lost_b}, 1s, "2: a0-1 c2-3"},
           // Hosts of the last generation come first, wherever the list has them.
           {{{"c", 2}, {"b", 2}, {"a", 2}}, {killed}, 1s, "2: a0-1 b2-3"},
           {{{"a", 2}, {"b", 1}}, {killed}, 1s, "2: a0-1 b2-2"},
           {{{"a", 2}, {"c", 2}}, {broken}, 1s, "2: a0-1 c2-3"},
           {{{"a", 2}},
            {broken},
            1s,
            "wait until 61000: 2 of the 3 ranks that --min-np asks for have a host"},
           {{{"a", 2}, {"b", 2}},
            {lost_b},
            1s,
            "wait until 11000: 2 of the 3 ranks that --min-np asks for have a host"},
           {{{"a", 2}, {"b", 2}}, {lost_b}, 11s, "2: a0-1 b2-3"},
           // The second pause is twice as long.
           {{{"a", 2}, {"b", 2}},
            {lost_b, lost_b},
            20999ms,
            "wait until 21000: 2 of the 3 ranks that --min-np asks for have a host"},
           {{{"a", 2}, {"b", 2}}, {lost_b, lost_b}, 21s, "3: a0-1 b2-3"},
           {{},
            {broken},
            61s,
            "end: 0 of the 3 ranks that --min-np asks for have a host, for 60 s "
            "(--elastic-timeout)"},
           {kHosts,
            {killed, killed, killed},
            1s,
            "end: rank 2 has failed 3 times from step 10 on: the program is at fault, not a "
            "machine"},
           {kHosts, {killed, killed, end({}, 2, 11)}, 1s, "4: a0-1 b2-3"},
           {kHosts, {killed, killed, end({}, 3)}, 1s, "4: a0-1 b2-3"},
           {kHosts, std::vector<GenerationEnd>(6, lost_a), 1s,
            "end: it has begun anew 5 times, which --reset-limit allows"}}) {
    EXPECT_EQ(text_of(next_generation(row.now, row.hosts, row.ended, options)), row.next);
  }
}

TEST(ReasonToGiveWay, IsAHostThatIsGoneOrMoreRanks) {
  const ElasticOptions options{.min_np = 2, .max_np = 5};
  const std::vector<HostSlots> two{{"a", 2}, {"b", 2}};
  const Generation running = first_of(two, options);
  const GenerationEnd lost_b{running, 0ms, {.hosts = {"b"}}},
      lost_c{running, 0ms, {.hosts = {"c"}}};
  struct Row {
    std::vector<HostSlots> hosts;
    std::vector<GenerationEnd> ended;
    std::chrono::milliseconds now;
    std::string reason;
  };
  for (const Row& row : std::vector<Row>{{two, {}, 20s, ""},
                                         {kHosts, {}, 20s, "c has come"},
                                         {kHosts, {}, 9s, ""},
                                         {kHosts, {lost_c}, 9s, ""},
                                         {kHosts, {lost_c}, 20s, ""},
                                         {kHosts, {lost_b}, 20s, "c has come"},
                                         {{{"a", 3}, {"b", 2}}, {}, 20s, "there are more slots"},
                                         {{{"b", 2}}, {}, 1s, "a is to be used no more"},
                                         {{{"b", 2}, {"c", 2}}, {}, 1s, "a is to be used no more"},
                                         {{{"a", 1}, {"b", 2}}, {}, 20s, ""},
                                         {{{"b", 1}}, {}, 20s, ""},
                                         {{}, {}, 20s, ""}}) {
    EXPECT_EQ(reason_to_give_way(running, 0ms, row.now, row.hosts, row.ended, options), row.reason);
  }
}

// Whatever fails, a job ends or goes on: with each host once, enough ranks, none on a host that was
// set aside; and one whose program never gets on ends.
TEST(NextGeneration, OfRandomHistoriesIsAJobOrAnEnd) {
  auto random = internal::test::generator();
  const auto below = [&](std::uint64_t bound) { return static_cast<int>(random() % bound); };
  for (int history = 0; history < 10000; ++history) {
    ElasticOptions options{.min_np = 1 + below(4), .max_np = 4 + below(8)};
    if (below(2) == 0) options.reset_limit = below(20);
    const bool gets_on = below(4) != 0;
    std::vector<GenerationEnd> ended;
    std::chrono::milliseconds now{0};
    std::int64_t step = 0;
    bool is_over = false;
    for (int event = 0; event < 100 && !is_over; ++event) {
      std::vector<HostSlots> hosts;
      for (const char* name : {"a", "b", "c", "d"}) {
        if (below(4) != 0) hosts.push_back({name, 1 + below(3)});
      }
      const auto next = next_generation(now, hosts, ended, options);
      if (const auto* wait = std::get_if<WaitForHosts>(&next)) {
        ASSERT_GT(wait->until, now);
        now = wait->until;
        continue;
      }
      is_over = std::holds_alternative<GiveUp>(next);
      if (is_over) break;
      const auto& generation = std::get<Generation>(next);
      ASSERT_EQ(generation.number, std::ssize(ended) + 1);
      std::set<std::string> names;
      int rank = 0;
      for (const HostRanks& host : generation.hosts) {
        ASSERT_TRUE(names.insert(host.name).second);
        ASSERT_EQ(host.first, std::exchange(rank, rank + host.ranks));
        for (const GenerationEnd& end : ended) {
          if (std::ranges::count(end.loss.hosts, host.name) == 0) continue;
          ASSERT_GE(now, end.time + options.shortest_pause);
        }
      }
      ASSERT_GE(rank, options.min_np);
      ASSERT_LE(rank, options.max_np);
      now += std::chrono::milliseconds(below(100000));
      if (gets_on) step += below(3);
      GenerationEnd end{generation, now, {.step = step}};
      if (below(3) == 0) {
        end.loss.hosts = {generation.hosts[random() % generation.hosts.size()].name};
      } else {
        end.loss.rank = below(static_cast<std::uint64_t>(rank));
      }
      ended.push_back(std::move(end));
    }
    const int most = options.reset_limit ? *options.reset_limit + 1 : 100;
    ASSERT_LE(std::ssize(ended), most);
  }
}

TEST(NextGeneration, OfAProgramThatNeverGetsOnEndsTheJob) {
  std::vector<GenerationEnd> ended;
  while (ended.size() < 20) {
    const auto next = next_generation(0ms, kHosts, ended, {.min_np = 1, .max_np = 6});
    if (const auto* end = std::get_if<GiveUp>(&next)) {
      EXPECT_THAT(end->text, HasSubstr("the job has failed 10 times from step 7 on"));
      return;
    }
    const int rank = static_cast<int>(ended.size() % 2);
    ended.push_back({std::get<Generation>(next), 0ms, {.rank = rank, .step = 7}});
  }
  FAIL() << "it goes on for ever";
}

}  // namespace
}  // namespace hora::launch
