/// The text of a file that HORA_TUNING names: sizes of buckets found before, by what they hold for.
/// JSON: {"hora_tuning": 1, "bucket_sizes": {"<key>": <bytes>, ...}}. Pure.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <tl/expected.hpp>

namespace hora::internal {

/// The size under `key`; nothing where there is none. The error says what is wrong with the text.
tl::expected<std::optional<std::size_t>, std::string> tuned_size(std::string_view text,
                                                                 const std::string& key);

/// The text with this size under `key`, and whatever else it holds. An empty text is a new file.
/// `text` is one that tuned_size() takes, or empty.
std::string with_tuned_size(std::string_view text, const std::string& key, std::size_t size);

}  // namespace hora::internal
