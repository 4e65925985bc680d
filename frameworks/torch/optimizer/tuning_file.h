/// The text of a file that HORA_TUNING names: forms of buckets found before, by what they hold for.
/// JSON: {"hora_tuning": 1, "bucket_sizes": {"<key>": <bytes>, ...}, "compressed": {"<key>": <true
/// or false>, ...}}. Pure.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <tl/expected.hpp>

#include "frameworks/torch/optimizer/bucket_tuner.h"

namespace hora::internal {

/// The form under `key`; nothing where there is none. Where nothing says whether it is compressed
/// it is. The error says what is wrong with the text.
tl::expected<std::optional<BucketForm>, std::string> tuned_form(std::string_view text,
                                                                const std::string& key);

/// The text with this form under `key`, and whatever else it holds. An empty text is a new file.
/// `text` is one that tuned_form() takes, or empty.
std::string with_tuned_form(std::string_view text, const std::string& key, const BucketForm& form);

}  // namespace hora::internal
