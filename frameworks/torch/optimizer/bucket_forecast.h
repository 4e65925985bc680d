/// Which forms of buckets promise shorter steps, by what collectives cost and by when gradients
/// come. Pure: values in, values out, the same on every rank for the same values.
#pragma once

#include <cstddef>
#include <functional>
#include <span>
#include <vector>

#include "frameworks/torch/optimizer/bucket_layout.h"
#include "frameworks/torch/optimizer/bucket_tuner.h"
#include "frameworks/torch/optimizer/collective_cost.h"

namespace hora::internal {

/// How long after the last gradient the last average has come. `leads`: by gradient, how many
/// seconds before the last one it comes. A bucket begins with the last of its gradients, and ends
/// before the next one begins. What copies and averages take from the computation beside them, and
/// from its caches, is left out.
double exposed_seconds(std::span<const BucketLayout> layouts, std::span<const double> leads,
                       const CollectiveCost& cost);

struct ForecastInput {
  CollectiveCost cost;
  std::vector<double> leads;  ///< see exposed_seconds()
  double step_seconds = 0;    ///< of a step with the usual form
};
using LayoutsOf = std::function<std::vector<BucketLayout>(const BucketForm& form)>;

inline constexpr std::size_t least_forecast_bytes = std::size_t{256} << 10;

/// Forms for BucketTuner: the usual one, and the size that promises most among the powers of two
/// from least_forecast_bytes up to all gradients in one bucket, and one four times nearer to the
/// usual size, should the forecast go too far. Differences below BucketTuner::least_gain of a step
/// are none: of those that promise as much as the best the one in the middle is taken, as what the
/// forecast leaves out grows towards both ends; where none promises more than the usual one, a
/// quarter of that and four times it are tried. Where the usual form is compressed, the most
/// promising size is tried uncompressed, too. Left out are sizes that put gradients into the same
/// buckets as another, and those that promise a step longer than the usual one's.
std::vector<BucketForm> forms_that_promise(const BucketForm& usual, const LayoutsOf& layouts_of,
                                           const ForecastInput& input);

}  // namespace hora::internal
