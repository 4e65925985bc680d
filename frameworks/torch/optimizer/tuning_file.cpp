#include "frameworks/torch/optimizer/tuning_file.h"

#include <nlohmann/json.hpp>

namespace hora::internal {
namespace {

using Json = nlohmann::json;

constexpr const char* kFormat = "hora_tuning";
constexpr const char* kSizes = "bucket_sizes";
constexpr const char* kCompressed = "compressed";

Json parsed(std::string_view text) {
  return Json::parse(text, nullptr, /*allow_exceptions=*/false);
}

bool is_size(const Json& value) {
  return value.is_number_unsigned() && value.get<std::size_t>() > 0;
}

/// The value of the member `name`, an object, under `key`; discarded where it has none.
tl::expected<Json, std::string> found_in(const Json& file, const char* name,
                                         const std::string& key) {
  const Json member = file.value(name, Json::object());
  if (!member.is_object()) return tl::unexpected("\"" + std::string(name) + "\" is no object");
  const auto found = member.find(key);
  return found == member.end() ? Json(Json::value_t::discarded) : *found;
}

}  // namespace

tl::expected<std::optional<BucketForm>, std::string> tuned_form(std::string_view text,
                                                                const std::string& key) {
  const Json file = parsed(text);
  if (!file.is_object()) return tl::unexpected<std::string>("it is no JSON object");
  if (file.value(kFormat, Json()) != 1) {
    return tl::unexpected("it has no member \"" + std::string(kFormat) + "\" that is 1");
  }
  const auto size = found_in(file, kSizes, key);
  if (!size) return tl::unexpected(size.error());
  const auto compressed = found_in(file, kCompressed, key);
  if (!compressed) return tl::unexpected(compressed.error());
  if (size->is_discarded()) return std::nullopt;
  if (!is_size(*size)) {
    return tl::unexpected("the size of \"" + key + "\" is " + size->dump() +
                          "; expected a whole number above 0");
  }
  if (!compressed->is_discarded() && !compressed->is_boolean()) {
    return tl::unexpected("whether \"" + key + "\" is compressed is " + compressed->dump() +
                          "; expected true or false");
  }
  return BucketForm{size->get<std::size_t>(),
                    compressed->is_discarded() || compressed->get<bool>()};
}

std::string with_tuned_form(std::string_view text, const std::string& key, const BucketForm& form) {
  Json file = text.empty() ? Json{{kFormat, 1}} : parsed(text);
  file[kSizes][key] = form.bytes;
  file[kCompressed][key] = form.compressed;
  return file.dump(2) + "\n";
}

}  // namespace hora::internal
