/// What options say together. Pure.
#pragma once

#include <span>
#include <tl/expected.hpp>

#include "core/launch/options/launch_options.h"
#include "core/launch/options/usage_error.h"

namespace hora::launch {

/// Checks options against each other, and fills in what follows from several: np from hosts, nodes
/// and ranks per host; the rendezvous from the environment. Afterwards:
/// - with hosts, np is set and lay_out_ranks() succeeds;
/// - nnodes is above 1 exactly where a rendezvous is set, then np and ranks_per_host are, too, and
///   there are no hosts;
/// - settings of the options together with the environment's are valid.
tl::expected<void, UsageError> complete(LaunchOptions& options,
                                        std::span<const char* const> environment);

}  // namespace hora::launch
