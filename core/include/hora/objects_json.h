/// JSON values on all ranks; objects.h says how. They travel as CBOR, so that every string and
/// every number arrives as it was. For programs that have nlohmann_json; hora itself does without.
#pragma once

#include <hora/objects.h>

#include <concepts>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <span>
#include <vector>

namespace hora {

/// The root's value on every rank. A template, so that only a json is taken for one: text stays
/// text.
template <std::same_as<nlohmann::json> Json>
Json broadcast_object(const Context& context, const Json& value,
                      const BroadcastObjectOptions& options = {}) {
  std::vector<std::uint8_t> mine;
  if (context.rank() == options.root) mine = Json::to_cbor(value);
  return Json::from_cbor(broadcast_object(context, std::as_bytes(std::span(mine)), options));
}

/// Every rank's value on every rank, in the order of the set's ranks.
template <std::same_as<nlohmann::json> Json>
std::vector<Json> allgather_object(const Context& context, const Json& value,
                                   const AllgatherOptions& options = {}) {
  const std::vector<std::uint8_t> mine = Json::to_cbor(value);
  std::vector<Json> values;
  for (const auto& bytes : allgather_object(context, std::as_bytes(std::span(mine)), options)) {
    values.push_back(Json::from_cbor(bytes));
  }
  return values;
}

}  // namespace hora
