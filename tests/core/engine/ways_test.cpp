// Exchanges and broadcasts of memory that ranks give in every way.
#include <numeric>

#include "core/api/results.h"
#include "tests/core/engine/engine_fixture.h"
#include "tests/support/reference/reference.h"

namespace hora::internal {
namespace {

using namespace test;

constexpr std::size_t kRowBytes = 24;

/// How a rank gives its memory.
enum class Way { waits, handle, window };

struct Collective {
  OperationKind kind;
  std::string name;
  /// [from][to]; of an allgather [from][0]; of a broadcast [0][0], its bytes.
  std::vector<std::vector<std::int64_t>> rows;
  std::vector<Way> ways;  ///< by rank
  int root = 0;

  bool broadcasts() const { return kind == OperationKind::broadcast; }
  Bytes input_of(int rank) const {
    const auto& own = rows[broadcasts() ? 0 : static_cast<std::size_t>(rank)];
    const std::int64_t count = std::accumulate(own.begin(), own.end(), std::int64_t{0});
    Bytes input(static_cast<std::size_t>(count) * (broadcasts() ? 1 : kRowBytes));
    for (std::size_t i = 0; i < input.size(); ++i) {
      input[i] = static_cast<std::byte>(i * 7 + static_cast<std::size_t>(rank) * 31 + 1);
    }
    return input;
  }
  Exchanged expected_of(int rank) const {
    if (broadcasts()) return {.bytes = input_of(root), .rows = {}};
    std::vector<Bytes> inputs;
    for (std::size_t from = 0; from < rows.size(); ++from) {
      inputs.push_back(input_of(static_cast<int>(from)));
    }
    return kind == OperationKind::allgather ? allgathered(inputs, rows, kRowBytes)
                                            : alltoall_of(inputs, rows, kRowBytes, rank);
  }
};

/// One rank's part of a collective.
class Part {
 public:
  Part(const Collective& collective, int rank, NodeMemory& memory)
      : all_(collective),
        rank_(rank),
        way_(collective.ways[static_cast<std::size_t>(rank)]),
        memory_(memory),
        own_(collective.input_of(rank)),
        data_(own_.data()) {
    if (way_ != Way::window) return;
    data_ = memory_.allocate(own_.size()).data;
    std::ranges::copy(own_, data_);
  }
  ~Part() {
    if (way_ == Way::window) memory_.release(data_);
  }
  Part(const Part&) = delete;
  Part& operator=(const Part&) = delete;

  void submit(Engine& engine) {
    Request request{all_.name,
                    {.kind = all_.kind, .type = DataType::uint8, .root = all_.root, .shape = {}},
                    data_};
    if (all_.broadcasts()) {
      request.signature.shape = all_.rows[0];
    } else {
      request.signature.shape = {kAnyExtent, kRowBytes};
      request.bytes = own_.size();
      request.rows = all_.rows[static_cast<std::size_t>(rank_)];
      ResultForm form;
      form.view.type = DataType::uint8;
      form.view.shape = {0, kRowBytes};
      request.result = result_ = std::make_shared<HostResult>(memory_, form);
    }
    if (way_ == Way::waits) {
      engine.submit_and_wait(std::move(request));
    } else {
      operation_ = engine.submit(std::move(request));
    }
  }
  void expect_right(Engine& engine) {
    if (operation_) engine.wait(*operation_);
    const Exchanged expected = all_.expected_of(rank_);
    if (result_) {
      EXPECT_EQ(result_->rows(), expected.rows);
    }
    EXPECT_TRUE(
        std::equal(expected.bytes.begin(), expected.bytes.end(), result_ ? result_->data() : data_))
        << all_.name << " on rank " << rank_;
  }

 private:
  const Collective& all_;
  const int rank_;
  const Way way_;
  NodeMemory& memory_;
  Bytes own_;
  std::byte* data_;
  std::shared_ptr<HostResult> result_;
  std::shared_ptr<Operation> operation_;
};

class WaysOnLayouts : public EngineFixture {
 protected:
  /// Small chunks: several a tensor.
  static ThreadWorldOptions small_chunks() {
    ThreadWorldOptions result = options();
    result.settings.chunk_size = 1024;
    return result;
  }
  std::uint64_t below(std::size_t bound) { return random_() % bound; }

  /// By rank. `is_last`: of the collectives that are submitted together: a caller that waits cannot
  /// bring the next one.
  std::vector<Way> random_ways(bool is_last = true) {
    std::vector<Way> ways(static_cast<std::size_t>(world_.size()));
    for (Way& way : ways) way = static_cast<Way>(is_last ? below(3) : 1 + below(2));
    return ways;
  }
  Collective random_exchange(std::string name) {
    const auto ranks = static_cast<std::size_t>(world_.size());
    constexpr std::int64_t kRows[] = {0, 1, 5, 700, 3000};
    const auto some_rows = [&] { return kRows[below(std::size(kRows))]; };
    const bool gathers = below(2) == 0;
    Collective result{gathers ? OperationKind::allgather : OperationKind::alltoall,
                      std::move(name),
                      {},
                      random_ways()};
    const std::int64_t common = some_rows();
    const std::uint64_t uneven = below(3);  // no rank, one in two, all
    for (std::size_t rank = 0; rank < ranks; ++rank) {
      auto& own = result.rows.emplace_back(gathers ? 1 : ranks, common);
      if (below(2) < uneven) std::generate(own.begin(), own.end(), some_rows);
    }
    return result;
  }
  /// Group by group: each rank submits all of it, and then expects all to be right.
  void run(const std::vector<std::vector<Collective>>& groups) {
    on_all_ranks(world_, [&](int rank) {
      for (const auto& group : groups) {
        std::deque<Part> parts;
        for (const Collective& each : group) parts.emplace_back(each, rank, world_.memory(rank));
        for (Part& part : parts) part.submit(world_.engine(rank));
        for (Part& part : parts) part.expect_right(world_.engine(rank));
      }
    });
  }

  ThreadWorld world_{small_chunks()};
  std::mt19937_64 random_ = generator();
};
INSTANTIATE_TEST_SUITE_P(Nodes, WaysOnLayouts,
                         testing::Values(std::vector{1}, std::vector{2}, std::vector{4},
                                         std::vector{1, 1}, std::vector{2, 2}, std::vector{1, 3}),
                         layout_name);

// Whichever rank changes what it brings, or none.
TEST_P(WaysOnLayouts, ANameBringsWhatItBroughtUntilOneRankBringsOtherRows) {
  std::vector<std::vector<Collective>> exchanges;
  std::map<std::string, Collective> last;
  for (int i = 0; i < 120; ++i) {
    const std::string name = std::to_string(below(5));
    Collective& exchange = last.try_emplace(name, random_exchange(name)).first->second;
    if (below(3) == 0) {
      auto& own = exchange.rows[below(exchange.rows.size())];
      own[below(own.size())] = static_cast<std::int64_t>(below(900));
    }
    exchange.ways = random_ways();
    exchanges.push_back({exchange});
  }
  run(exchanges);
}

TEST_P(WaysOnLayouts, NodesTellOneAnotherExtentsOnceUntilTheyChange) {
  const std::uint64_t told = GetParam().size() > 1 ? 1 : 0;
  const auto crossings_of = [&](const Collective& exchange) {
    const std::uint64_t before = world_.crossings();
    run({{exchange}});
    return world_.crossings() - before;
  };
  for (int i = 0; i < 10; ++i) {
    Collective exchange = random_exchange("e" + std::to_string(i));
    const std::uint64_t first = crossings_of(exchange);
    EXPECT_EQ(crossings_of(exchange), first - told);
    EXPECT_EQ(crossings_of(exchange), first - told);
    for (auto& extent : exchange.rows.back()) extent += 1;
    Collective alike = exchange;
    alike.name += " alike";
    const std::uint64_t changed = crossings_of(alike);
    EXPECT_EQ(crossings_of(exchange), changed);
    EXPECT_EQ(crossings_of(exchange), changed - told);
  }
}

// Broadcasts of ranks that wait are fetched; several may travel in one message with others that are
// not. Names are used again, in other ways.
TEST_P(WaysOnLayouts, EveryMixtureOfWaysGivesTheRootsBytes) {
  constexpr std::int64_t kSizes[] = {0, 63, 4096, 100'000, kFollowedBytes + 70'001, (1 << 20) + 5};
  std::vector<std::vector<Collective>> groups(40);
  for (std::size_t g = 0; g < groups.size(); ++g) {
    const int root = static_cast<int>(below(static_cast<std::size_t>(world_.size())));
    for (int i = 0; i < 3; ++i) {
      groups[g].push_back({OperationKind::broadcast,
                           std::to_string(g % 7) + "." + std::to_string(i * 10 + root),
                           {{kSizes[below(std::size(kSizes))]}},
                           random_ways(i == 2),
                           root});
    }
  }
  run(groups);
}

}  // namespace
}  // namespace hora::internal
