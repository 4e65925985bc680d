/// Config files: options in YAML or JSON. Pure.
///
/// One map from names of flags, without dashes, to values:
///
///     np: 4
///     hosts: [a:2, b:2]
///     fusion-threshold: 32MiB     # fusion_threshold, too
///     prefix-output: off
///
/// Not accepted, each with its line: unknown keys, keys that are given twice (also in two
/// spellings), flags that only a command line can have, maps in the map, anchors and aliases,
/// several documents.
#pragma once

#include <cstddef>
#include <string_view>
#include <tl/expected.hpp>
#include <vector>

#include "core/launch/options/arguments.h"

namespace hora::launch {

inline constexpr std::size_t kLargestConfigFile = std::size_t{64} << 10;

/// `text` is the content of the file `path`. Larger texts than kLargestConfigFile are an error.
tl::expected<std::vector<Occurrence>, UsageError> parse_config(std::string_view text,
                                                               std::string_view path);

}  // namespace hora::launch
