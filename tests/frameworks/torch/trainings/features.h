/// Features of a training, and those that do not go together. Pure.
#pragma once

#include <bitset>
#include <cstddef>
#include <string>
#include <utility>
#include <vector>

namespace hora::internal::test {

enum class Feature {
  sharding,
  compression,
  hook,
  grad_scaler,
  accumulation,
  clipping,
  groups,
  static_graph,
  join,
  process_set,
  two_optimizers,
  replaced,  ///< parameters get other memory, or other values, between steps
  frozen,
  tied,
  empty,
  scalar,
  strided,
};
inline constexpr std::size_t kFeatures = 17;
using Features = std::bitset<kFeatures>;
constexpr std::size_t index_of(Feature feature) {
  return static_cast<std::size_t>(feature);
}

const char* name_of(Feature feature);
/// "join, empty".
std::string names_of(const Features& features);

/// Two that hora refuses, and what its error says.
struct Exclusion {
  Feature one;
  Feature other;
  std::string text;
};
const std::vector<Exclusion>& exclusions();
bool go_together(Feature one, Feature other);

/// Two that should be drawn, and that no training among these has both of.
std::vector<std::pair<Feature, Feature>> pairs_missing(const std::vector<Features>& trainings);

}  // namespace hora::internal::test
