/// Which gradients are averaged where autograd has put them, and which are copied into their
/// bucket. Pure; knows no LibTorch.
#pragma once

#include <cstddef>
#include <limits>

namespace hora::internal {

/// Facts of an optimizer, the same on all ranks.
struct AveragingFacts {
  bool arena_wanted = false;  ///< wants_tensor_arena()
  bool on_host = true;
  int nodes = 1;
  bool sharded = false;
  bool fused = false;   ///< sharded, and averaged by the pass that updates
  bool hooked = false;  ///< a user's hook averages
  bool adasum = false;
};

inline constexpr std::size_t kNeverApart = std::numeric_limits<std::size_t>::max();

/// Gradients of this many bytes or more are averaged by themselves, each under a name of its own or
/// by the pass that updates, so that every rank may have it anywhere in the node's memory. Between
/// nodes a bucket is one message, and what else looks at a bucket wants it in one piece.
std::size_t least_apart(const AveragingFacts& facts);

enum class GradientWay {
  in_place,  ///< peers read and write it where autograd has put it
  copied     ///< into its place in the bucket, which `.grad` views from then on
};

/// Facts of one gradient in one round; ranks may differ.
struct GradientFacts {
  bool apart = false;     ///< it is averaged by itself
  bool in_arena = false;  ///< the node's ranks reach all of it
  bool plain = false;     ///< it travels as it is: neither converted, scaled nor checked
  bool in_order = false;  ///< of its place's strides
  /// Something else than `.grad`, and than what autograd is about to drop, uses its memory: another
  /// parameter's gradient, a tensor of the user's, a graph of gradients.
  bool shared = false;
};

GradientWay gradient_way(const GradientFacts& facts);

}  // namespace hora::internal
