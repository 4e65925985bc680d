/// How names begin that hora itself gives to collectives of a training step.
#pragma once

#include <string_view>

namespace hora::internal {

/// "hora.gradients.<optimizer>.<bucket>", and others of an optimizer; bucket 0 is full first.
inline constexpr std::string_view kGradientsName = "hora.gradients.";
/// Before the number of a layout that is not the optimizer's first one, and that before the
/// bucket's: "hora.gradients.0.layout1.3".
inline constexpr std::string_view kLayoutName = "layout";
/// "hora.sync_batch_norm.<layer>", and with ".backward" after it.
inline constexpr std::string_view kSyncBatchNormName = "hora.sync_batch_norm.";
inline constexpr std::string_view kBackwardEnd = ".backward";

}  // namespace hora::internal
