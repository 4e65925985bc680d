#include "tests/frameworks/torch/trainings/features.h"

#include <algorithm>

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

std::vector<std::pair<Feature, Feature>> pairs_missing(const std::vector<Features>& trainings) {
  std::vector<std::pair<Feature, Feature>> missing;
  for (std::size_t a = 0; a < kFeatures; ++a) {
    for (std::size_t b = a + 1; b < kFeatures; ++b) {
      const auto one = static_cast<Feature>(a);
      const auto other = static_cast<Feature>(b);
      const bool seen = std::any_of(trainings.begin(), trainings.end(), [&](const Features& drawn) {
        return drawn.test(a) && drawn.test(b);
      });
      if (!seen && go_together(one, other)) missing.emplace_back(one, other);
    }
  }
  return missing;
}

}  // namespace hora::internal::test
