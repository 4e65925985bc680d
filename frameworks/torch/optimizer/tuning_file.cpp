#include "frameworks/torch/optimizer/tuning_file.h"

#include <nlohmann/json.hpp>

namespace hora::internal {
namespace {

using Json = nlohmann::json;

constexpr const char* kFormat = "hora_tuning";
constexpr const char* kSizes = "bucket_sizes";

Json parsed(std::string_view text) {
  return Json::parse(text, nullptr, /*allow_exceptions=*/false);
}

bool is_size(const Json& value) {
  return value.is_number_unsigned() && value.get<std::size_t>() > 0;
}

}  // namespace

tl::expected<std::optional<std::size_t>, std::string> tuned_size(std::string_view text,
                                                                 const std::string& key) {
  const Json file = parsed(text);
  if (!file.is_object()) return tl::unexpected<std::string>("it is no JSON object");
  if (file.value(kFormat, Json()) != 1) {
    return tl::unexpected("it has no member \"" + std::string(kFormat) + "\" that is 1");
  }
  const Json sizes = file.value(kSizes, Json::object());
  if (!sizes.is_object()) {
    return tl::unexpected("\"" + std::string(kSizes) + "\" is no object");
  }
  const auto found = sizes.find(key);
  if (found == sizes.end()) return std::nullopt;
  if (!is_size(*found)) {
    return tl::unexpected("the size of \"" + key + "\" is " + found->dump() +
                          "; expected a whole number above 0");
  }
  return found->get<std::size_t>();
}

std::string with_tuned_size(std::string_view text, const std::string& key, std::size_t size) {
  Json file = text.empty() ? Json{{kFormat, 1}} : parsed(text);
  file[kSizes][key] = size;
  return file.dump(2) + "\n";
}

}  // namespace hora::internal
