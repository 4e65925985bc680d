#include "tests/frameworks/torch/trainings/training.h"

#include <algorithm>

#include "tests/support/random_draws.h"

namespace hora::internal::test {
const char* name_of(Feature feature) {
  constexpr const char* kNames[] = {
      "sharding", "compression",  "hook",  "grad_scaler", "accumulation",   "clipping",
      "groups",   "static_graph", "join",  "process_set", "two_optimizers", "replaced",
      "frozen",   "tied",         "empty", "scalar",      "strided"};
  static_assert(std::size(kNames) == kFeatures);
  return kNames[index_of(feature)];
}

std::string names_of(const Features& features) {
  std::string names;
  for (std::size_t i = 0; i < kFeatures; ++i) {
    if (!features.test(i)) continue;
    names += (names.empty() ? "" : ", ") + std::string(name_of(static_cast<Feature>(i)));
  }
  return names.empty() ? "nothing" : names;
}

const std::vector<Exclusion>& exclusions() {
  static const std::vector<Exclusion> all = {
      {Feature::sharding, Feature::compression, "sharding and compression do not go together"},
      {Feature::sharding, Feature::hook, "hook and sharding do not go together"},
      {Feature::sharding, Feature::static_graph, "sharding and static_graph do not go together"},
      {Feature::sharding, Feature::join, "join() with sharding"},
      {Feature::hook, Feature::join, "join() with a hook"},
  };
  return all;
}

bool go_together(Feature one, Feature other) {
  return std::none_of(exclusions().begin(), exclusions().end(), [&](const Exclusion& pair) {
    return (pair.one == one && pair.other == other) || (pair.one == other && pair.other == one);
  });
}

namespace {

constexpr int kMostBlocks = 6;

class Drawer : RandomDraws {
 public:
  Drawer(std::uint64_t seed, int ranks, const std::vector<Feature>& wanted) : RandomDraws(seed) {
    training_.seed = seed;
    training_.ranks = ranks;
    for (const Feature feature : wanted) training_.features.set(index_of(feature));
  }

  Training draw() {
    draw_features();
    draw_optimizer();
    draw_options();
    draw_blocks();
    draw_steps();
    return training_;
  }

 private:
  bool has(Feature feature) const { return training_.has(feature); }
  bool updates_early() const { return training_.sharding == 3; }

  void draw_features() {
    std::vector<Feature> order;
    for (std::size_t i = 0; i < kFeatures; ++i) order.push_back(static_cast<Feature>(i));
    for (std::size_t i = kFeatures; i > 1; --i) {
      std::swap(order[i - 1], order[random_() % i]);
    }
    const int odds = 2 + below(3);  // few features, or many
    for (const Feature feature : order) {
      if (!one_in(odds)) continue;
      const bool allowed = std::all_of(order.begin(), order.end(), [&](Feature other) {
        return !has(other) || go_together(feature, other);
      });
      if (allowed) training_.features.set(index_of(feature));
    }
  }

  void draw_optimizer() {
    constexpr Wrapped kAll[] = {Wrapped::sgd,   Wrapped::momentum, Wrapped::nesterov, Wrapped::adam,
                                Wrapped::adamw, Wrapped::adagrad,  Wrapped::rmsprop};
    // A hook adds in float32: an optimizer that divides by the gradient's size shows its rounding.
    constexpr Wrapped kSmooth[] = {Wrapped::sgd, Wrapped::momentum, Wrapped::nesterov};
    training_.wrapped = has(Feature::hook) ? one_of(kSmooth) : one_of(kAll);
  }

  void draw_options() {
    constexpr std::size_t kBucketBytes[] = {0, 64, 256, 1024};
    training_.bucket_bytes = one_of(kBucketBytes);
    if (has(Feature::compression)) {
      training_.compression = one_in(2) ? Compression::float16 : Compression::bfloat16;
    }
    if (has(Feature::hook)) {
      training_.hook = one_in(2) ? Hook::power_sgd : Hook::top_k;
    } else if (one_in(4)) {
      training_.op = ReduceOp::sum;
    } else if (one_in(6) && training_.compression != Compression::float16) {
      training_.predivide = 2.0;  // exact, but where float16 has few digits left
    }
    if (has(Feature::groups)) training_.grouping = one_in(2) ? Grouping::number : Grouping::lists;
    if (has(Feature::accumulation)) {
      training_.accumulation = one_in(2) ? Accumulation::passes : Accumulation::no_sync;
      training_.passes = 2 + below(2);
    }
    // Updates in backward() do not wait for what is done to gradients.
    const bool changes_gradients = has(Feature::clipping) || has(Feature::grad_scaler);
    const bool one_pass = training_.wrapped < Wrapped::adagrad;
    if (has(Feature::sharding)) {
      training_.sharding = 1 + (one_pass ? below(changes_gradients ? 2 : 3) : 0);
    }
    training_.overlaps_gather = has(Feature::sharding) && one_in(2);
    training_.decay = one_in(2) ? 1.0 : 0.75;
    constexpr Moment kMoments[] = {Moment::backward, Moment::step, Moment::end};
    training_.replaced_at = updates_early() ? Moment::end : one_of(kMoments);
    if (one_in(2)) training_.replaced = static_cast<unsigned>(random_());
    if (has(Feature::grad_scaler)) {
      training_.initial_scale = static_cast<double>(1 << below(8));
      training_.growth_interval = 1 + below(3);
    }
    if (has(Feature::clipping)) training_.max_norm = one_in(3) ? 100.0 : 0.125;
    training_.optimizers = has(Feature::two_optimizers) ? 2 : 1;
  }

  /// Wide ones not where gradients are copied all the same, being compressed, and where the
  /// optimizer amplifies rounding in the smallest of many gradients.
  Block::Kind draw_kind() {
    const bool no_wide = has(Feature::compression) || training_.wrapped == Wrapped::rmsprop;
    return static_cast<Block::Kind>(below(no_wide ? 2 : 3));
  }

  Block draw_block(Block::Kind kind) {
    Block block;
    block.kind = kind;
    block.optimizer = below(training_.optimizers);
    block.options = below(2);
    if (has(Feature::strided) && one_in(2)) block.layout = Block::Layout::turned;
    if (has(Feature::frozen) && one_in(2)) draw_freezing(block);
    return block;
  }

  void draw_freezing(Block& block) {
    block.frozen_from = has(Feature::static_graph) || one_in(2) ? 0 : 1 + below(3);
    if (!has(Feature::static_graph) && one_in(2)) block.frozen_until = block.frozen_from + 2;
  }

  /// One of each kind that a feature asks for, and some more. The first is never frozen.
  void draw_blocks() {
    auto& blocks = training_.blocks;
    Block first = draw_block(Block::Kind::linear);
    first.frozen_from = first.frozen_until = 1000;
    first.optimizer = 0;
    blocks.push_back(first);
    Block second = draw_block(draw_kind());
    second.optimizer = training_.optimizers - 1;
    if (has(Feature::strided)) second.layout = Block::Layout::turned;
    blocks.push_back(second);
    if (has(Feature::scalar)) blocks.push_back(draw_block(Block::Kind::gain));
    if (has(Feature::empty)) blocks.push_back(draw_block(Block::Kind::nothing));
    if (has(Feature::frozen)) {
      blocks.push_back(draw_block(draw_kind()));
      draw_freezing(blocks.back());
    }
    if (has(Feature::tied)) {
      const int owner = below(static_cast<int>(blocks.size()));
      Block tied = blocks[static_cast<std::size_t>(owner)];
      tied.tied_to = owner;
      tied.named = one_in(2);
      blocks.push_back(tied);
    }
    while (blocks.size() < kMostBlocks && one_in(2)) blocks.push_back(draw_block(draw_kind()));
  }

  unsigned draw_use() {
    const unsigned all = (1U << training_.blocks.size()) - 1;
    // The first block is used by all, so that there is a gradient.
    return one_in(2) ? all : (static_cast<unsigned>(random_()) & all) | 1U;
  }

  Share draw_share() {
    Share share;
    const bool less = !has(Feature::static_graph);
    if (less && one_in(12)) return share;
    for (int pass = 0; pass < training_.passes; ++pass) share.passes.push_back(draw_use());
    if (less && share.passes.size() > 1 && one_in(6)) share.passes.pop_back();
    // Ranks wait for two optimizers in the same order.
    share.synchronizes = !updates_early() && training_.optimizers == 1 && one_in(4);
    return share;
  }

  void draw_steps() {
    const int steps = 4 + below(3);
    std::vector<Share> usual;
    for (int rank = 0; rank < training_.ranks; ++rank) {
      // static_graph refuses what no rank has used in the first step, which a rank may have joined
      // before.
      const bool alike = has(Feature::static_graph) && has(Feature::join) && rank > 0;
      usual.push_back(alike ? usual.front() : draw_share());
    }
    for (int step = 0; step < steps; ++step) {
      auto& shares = training_.shares.emplace_back();
      for (int rank = 0; rank < training_.ranks; ++rank) {
        const bool same = has(Feature::static_graph) || one_in(2);
        shares.push_back(same ? usual[static_cast<std::size_t>(rank)] : draw_share());
      }
      if (has(Feature::grad_scaler) && one_in(4)) {
        shares[static_cast<std::size_t>(below(training_.ranks))].overflows = true;
      }
      training_.replacements.push_back(draw_replacement(step));
      training_.discards.push_back(!has(Feature::static_graph) && !updates_early() && one_in(6));
    }
    training_.steps_before_join = has(Feature::join) ? steps - 1 - below(2) : steps;
    for (int rank = 0; rank < training_.ranks; ++rank) {
      const int all = training_.steps_before_join;
      training_.joins_after.push_back(has(Feature::join) && one_in(2) ? below(all + 1) : all);
    }
    // The last one of each set that trains together.
    for (int rank = 0; rank < std::min(2, training_.ranks); ++rank) {
      const auto members = training_.members(rank);
      const auto last = static_cast<std::size_t>(one_of(members));
      training_.joins_after[last] = training_.steps_before_join;
    }
  }

  Replacement draw_replacement(int step) {
    // In the first step ranks compare parameters: some in backward(), some in step().
    const bool compared = step == 0 && training_.replaced_at == Moment::step;
    if (!has(Feature::replaced) || compared || one_in(2)) return Replacement::none;
    return static_cast<Replacement>(1 + below(4));
  }

  Training training_;
};

}  // namespace

bool Training::takes_part(int rank, int step) const {
  return step >= steps_before_join || step < joins_after[static_cast<std::size_t>(rank)];
}

std::vector<int> Training::members(int rank) const {
  std::vector<int> result;
  const bool apart = has(Feature::process_set);
  for (int r = 0; r < ranks; ++r) {
    if (!apart || r % 2 == rank % 2) result.push_back(r);
  }
  return result;
}

std::string Training::describe() const {
  constexpr const char* kWrapped[] = {
      "SGD", "SGD with momentum", "SGD with Nesterov", "Adam", "AdamW", "Adagrad", "RMSprop"};
  return names_of(features) + "; " + kWrapped[static_cast<std::size_t>(wrapped)] + ", " +
         std::string(hora::name_of(op)) + ", " + std::to_string(blocks.size()) + " blocks, " +
         std::to_string(steps()) + " steps";
}

Training draw_training(std::uint64_t seed, int ranks, const std::vector<Feature>& wanted) {
  return Drawer(seed, ranks, wanted).draw();
}

}  // namespace hora::internal::test
