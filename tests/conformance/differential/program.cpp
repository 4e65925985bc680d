#include "tests/conformance/differential/program.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <set>

#include "tests/support/random_draws.h"
#include "tests/support/reference/elements.h"

namespace hora::internal::test {
namespace {

constexpr int kMostPhases = 6;
constexpr int kMostOperations = 10;  ///< of a phase
constexpr std::uint64_t kNames =
    8;  ///< of a set, for the even phases, and as many for the odd ones

class Drawer : RandomDraws {
 public:
  Drawer(std::uint64_t seed, int ranks) : RandomDraws(seed) {
    program_.seed = seed;
    program_.ranks = ranks;
  }

  Program draw() {
    draw_settings();
    draw_sets();
    program_.phases = 1 + below(kMostPhases);
    for (int phase = 0; phase < program_.phases; ++phase) draw_phase(phase);
    return program_;
  }

 private:
  void draw_settings() {
    const std::map<std::string, std::vector<std::string>> choices = {
        {"HORA_CHUNK_SIZE", {"4KiB", "20KiB"}}, {"HORA_FUSION_THRESHOLD", {"0", "1KiB"}},
        {"HORA_SMALL_MESSAGE", {"0", "100"}},   {"HORA_CROSS_ALGORITHM", {"direct", "ring"}},
        {"HORA_ID_CAPACITY", {"16"}},           {"HORA_SPIN", {"0us"}},
        {"HORA_NCCL_WINDOWS", {"on"}}};
    for (const auto& [variable, values] : choices) {
      if (one_in(2)) program_.settings.emplace_back(variable, one_of(values));
    }
  }

  void draw_sets() {
    std::vector<int> world(static_cast<std::size_t>(program_.ranks));
    std::iota(world.begin(), world.end(), 0);
    program_.sets.push_back(world);
    for (int left = below(4); left > 0; --left) {
      std::vector<int> ranks = world;
      std::erase_if(ranks, [&](int) { return one_in(3); });
      program_.sets.push_back(ranks.empty() ? world : ranks);
    }
    program_.removes_sets = one_in(2);
  }

  void draw_phase(int phase) {
    std::set<std::pair<std::size_t, std::string>> used;
    for (int left = below(kMostOperations + 1); left > 0; --left) {
      const std::size_t set = one_in(2) ? 0 : random_() % program_.sets.size();
      const std::string name =
          (phase % 2 == 0 ? "even" : "odd") + std::to_string(random_() % kNames);
      if (!used.emplace(set, name).second) continue;
      Operation operation = usual(set, name);
      operation.name = name;
      operation.phase = phase;
      operation.blocking = one_in(4);
      if (operation.blocking && one_in(3)) operation.name.clear();
      operation.values = random_();
      if (one_in(6)) draw_dispute(operation);
      program_.operations.push_back(std::move(operation));
    }
  }

  /// Most uses of a name are alike, so that ranks find it in their caches.
  Operation usual(std::size_t set, const std::string& name) {
    const auto key = std::make_pair(set, name);
    auto found = usual_.find(key);
    if (found == usual_.end()) found = usual_.emplace(key, draw_operation(set)).first;
    return one_in(5) ? draw_operation(set) : found->second;
  }

  Operation draw_operation(std::size_t set) {
    Operation result;
    result.set = set;
    result.kind = one_of(kKinds);
    result.type = one_of(kAllTypes);
    result.root = one_of(program_.sets[set]);
    for (int dimensions = below(3); dimensions > 0; --dimensions) {
      result.row.push_back(one_in(20) ? 0 : 1 + below(17));
    }
    draw_rows(result);
    if (is_reduction(result.kind)) draw_reduction(result);
    return result;
  }

  std::int64_t some_rows() {
    if (one_in(6)) return 0;
    return one_in(10) ? below(500) : below(20);
  }

  void draw_rows(Operation& operation) {
    const std::size_t size = program_.sets[operation.set].size();
    operation.rows.assign(size, {some_rows()});
    if (operation.kind == Kind::allgather) {
      for (auto& own : operation.rows) own = {some_rows()};
    } else if (operation.kind == Kind::alltoall) {
      for (auto& own : operation.rows) {
        own.resize(size);
        std::generate(own.begin(), own.end(), [&] { return some_rows(); });
      }
    } else if (operation.kind != Kind::reduce_scatter && one_in(10)) {
      operation.is_scalar = true;
      operation.row.clear();
      operation.rows.assign(size, {1});
    }
  }

  void draw_reduction(Operation& operation) {
    constexpr ReduceOp kOfAll[] = {ReduceOp::sum, ReduceOp::sum, ReduceOp::min, ReduceOp::max,
                                   ReduceOp::product};
    operation.op = one_of(kOfAll);
    if (!is_floating_point(operation.type)) return;
    if (one_in(3)) operation.op = ReduceOp::average;
    constexpr double kScales[] = {1.0, 1.0, 0.5, 2.0, -1.0};
    operation.prescale = one_of(kScales);
    operation.postscale = one_of(kScales);
  }

  void draw_dispute(Operation& operation) {
    const auto& members = program_.sets[operation.set];
    if (members.size() == 1 || operation.kind == Kind::barrier) return;
    operation.odd_rank = one_of(members);
    constexpr Oddness kOddnesses[] = {Oddness::type, Oddness::shape, Oddness::reduction};
    operation.oddness = one_of(kOddnesses);
    if (!is_reduction(operation.kind) && operation.oddness == Oddness::reduction) {
      operation.oddness = Oddness::shape;
    }
  }

  Program program_;
  std::map<std::pair<std::size_t, std::string>, Operation> usual_;
};

}  // namespace

const char* name_of(Kind kind) {
  constexpr const char* kNamesOfKinds[] = {"allreduce", "broadcast", "barrier",
                                           "allgather", "alltoall",  "reduce_scatter"};
  return kNamesOfKinds[static_cast<std::size_t>(kind)];
}

Shape Operation::shape(std::size_t place) const {
  if (is_scalar) return {};
  Shape result = row;
  const auto& own = rows[place];
  result.insert(result.begin(), std::accumulate(own.begin(), own.end(), std::int64_t{0}));
  return result;
}

Operation Operation::submitted_by(int rank) const {
  Operation submitted = *this;
  if (rank != odd_rank) return submitted;
  switch (oddness) {
    case Oddness::type:
      submitted.type = type == DataType::float64 ? DataType::float32 : DataType::float64;
      break;
    case Oddness::shape:  // one more dimension, of extent 1
      if (is_scalar) {
        submitted.is_scalar = false;
      } else {
        submitted.row.push_back(1);
      }
      break;
    case Oddness::reduction:
      submitted.op = op == ReduceOp::max ? ReduceOp::min : ReduceOp::max;
      break;
  }
  return submitted;
}

int place_in(const std::vector<int>& set, int rank) {
  const auto found = std::find(set.begin(), set.end(), rank);
  return found == set.end() ? -1 : static_cast<int>(found - set.begin());
}

Program draw_program(std::uint64_t seed, int ranks) {
  return Drawer(seed, ranks).draw();
}

Program every_operation(DataType type, int ranks) {
  using Rows = std::vector<std::vector<std::int64_t>>;
  Program program;
  program.seed = static_cast<std::uint64_t>(type);
  program.ranks = ranks;
  program.settings = {{"HORA_CROSS_ALGORITHM", program.seed % 2 == 0 ? "direct" : "ring"}};
  program.sets.resize(ranks > 1 ? 3 : 1);
  for (int rank = 0; rank < ranks; ++rank) {
    program.sets[0].push_back(rank);
    if (ranks > 1) program.sets[static_cast<std::size_t>(1 + rank % 2)].push_back(rank);
  }
  program.phases = 3;  // a name is not used in two that follow one another
  int number = 0;
  Operation next;
  next.type = type;
  const auto add = [&](Kind kind, ReduceOp op, Shape row, Rows rows, bool is_scalar = false) {
    next.kind = kind;
    next.op = op;
    next.root = program.sets[next.set][static_cast<std::size_t>(number) % rows.size()];
    next.row = std::move(row);
    next.rows = std::move(rows);
    next.is_scalar = is_scalar;
    next.name = std::to_string(number);
    next.blocking = number % 5 == 0;
    next.values = static_cast<std::uint64_t>(number++);
    program.operations.push_back(next);
  };
  for (next.phase = 0; next.phase < program.phases; next.phase += 2) {
    for (next.set = 0; next.set < program.sets.size(); ++next.set) {
      number = 0;
      const std::size_t size = program.sets[next.set].size();
      const auto last = static_cast<std::int64_t>(size) - 1;
      /// Rows that each place brings (to an allgather), or sends to each.
      const auto rows = [&](std::size_t to_count, auto&& count) {
        Rows result(size);
        for (std::size_t from = 0; from < size; ++from) {
          for (std::size_t to = 0; to < to_count; ++to) {
            result[from].push_back(
                count(static_cast<std::int64_t>(from), static_cast<std::int64_t>(to)));
          }
        }
        return result;
      };
      const auto each = [&](std::int64_t count) { return Rows(size, {count}); };
      add(Kind::barrier, ReduceOp::sum, {}, each(1));
      std::vector<ReduceOp> others(kElementOps.begin() + 1, kElementOps.end());
      if (is_floating_point(type)) others.push_back(ReduceOp::average);
      for (const ReduceOp op : others) {
        add(Kind::allreduce, op, {17}, each(17));
        add(Kind::allreduce, op, {}, each(1), true);
        add(Kind::reduce_scatter, op, {17}, each(17));
      }
      for (std::size_t i = 0; i < 4; ++i) add(Kind::broadcast, ReduceOp::sum, {17}, each(17));
      for (const Kind kind : {Kind::allreduce, Kind::broadcast}) {
        add(kind, ReduceOp::sum, {}, each(1), true);
      }
      for (const Shape& row : {Shape{}, Shape{17}, Shape{17, 17}, Shape{0, 3}}) {
        for (const std::int64_t count : {0, 1, 5, 17}) {
          for (const Kind kind : {Kind::allreduce, Kind::broadcast, Kind::reduce_scatter}) {
            add(kind, ReduceOp::sum, row, each(count));
          }
        }
        const auto gather = [&](auto&& of) {
          add(Kind::allgather, ReduceOp::sum, row, rows(1, of));
        };
        gather([](auto, auto) { return 17; });
        gather([](auto from, auto) { return 1 + 5 * from; });
        gather([&](auto from, auto) { return from == last ? 17 : 0; });
        // As long as if all brought what the first one does.
        gather([](auto from, auto) { return 6 + (from == 1 ? -2 : 0) + (from == 2 ? 2 : 0); });
        gather([](auto, auto) { return 0; });
        const auto exchange = [&](auto&& of) {
          add(Kind::alltoall, ReduceOp::sum, row, rows(size, of));
        };
        exchange([](auto from, auto to) { return 1 + from + 2 * to; });
        exchange([&](auto, auto to) { return to == last ? 17 : 0; });
        exchange([](auto from, auto) { return from == 0 ? 17 : 0; });
        exchange([](auto from, auto to) { return from == to ? 17 : 0; });
        for (const int even : {0, 17}) exchange([=](auto, auto) { return even; });
      }
    }
  }
  return program;
}

std::vector<Step> schedule(const Program& program, int rank) {
  std::seed_seq own{program.seed >> 32U, program.seed & 0xffffffffU,
                    static_cast<std::uint64_t>(rank)};
  std::mt19937_64 random(own);
  std::vector<Step> steps;
  std::vector<std::size_t> open;
  for (int phase = 0; phase < program.phases; ++phase) {
    std::vector<std::size_t> starting, running;
    for (std::size_t i = 0; i < program.operations.size(); ++i) {
      const Operation& operation = program.operations[i];
      if (operation.phase != phase || place_in(program.sets[operation.set], rank) < 0) continue;
      (operation.blocking ? running : starting).push_back(i);
    }
    std::shuffle(starting.begin(), starting.end(), random);
    for (const std::size_t i : starting) steps.push_back({Step::Action::start, i});
    for (const std::size_t i : running) steps.push_back({Step::Action::run, i});

    const bool last = phase + 1 == program.phases;
    open.insert(open.end(), starting.begin(), starting.end());
    std::shuffle(open.begin(), open.end(), random);
    std::erase_if(open, [&](std::size_t i) {
      if (!last && program.operations[i].phase == phase && random() % 3 == 0) return false;
      steps.push_back({Step::Action::wait, i});
      return true;
    });
  }
  return steps;
}

}  // namespace hora::internal::test
