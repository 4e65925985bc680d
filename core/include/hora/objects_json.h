/// JSON values on all ranks, for programs that have nlohmann_json; they travel as CBOR.
///
///     nlohmann::json options;
///     if (world.rank() == 0) options = {{"epochs", 90}, {"rate", 0.1}};
///     options = hora::broadcast_object(world, options, {.name = "options"});
///
/// Rules and errors: objects.h; besides, Error(invalid_argument) for a value deeper than
/// kJsonDepth, and Error(transport) where what a peer sent is no CBOR, or deeper.
#pragma once

#include <hora/error.h>
#include <hora/export.h>
#include <hora/objects.h>
#include <hora/process_set.h>

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <vector>

namespace HORA_EXPORT hora {

/// Bounds the recursion of reading and freeing a value.
inline constexpr int kJsonDepth = 1000;

namespace detail {

/// Reads CBOR and keeps nothing; stops where it goes too deep.
struct JsonDepth : nlohmann::detail::json_sax_acceptor<nlohmann::json> {
  bool start_object(std::size_t) { return enter(); }
  bool start_array(std::size_t) { return enter(); }
  bool end_object() { return --depth >= 0; }
  bool end_array() { return --depth >= 0; }
  bool parse_error(std::size_t, const std::string&, const nlohmann::detail::exception& error) {
    problem = error.what();
    return false;
  }
  bool enter() {
    if (++depth <= kJsonDepth) return true;
    problem = "its values go deeper than " + std::to_string(kJsonDepth) + " levels";
    return false;
  }

  int depth = 0;
  std::string problem;  ///< empty where from_cbor() can read it
};

inline bool is_deeper_than(const nlohmann::json& value, int levels) {
  if (!value.is_structured()) return false;
  if (levels == 0) return true;
  for (const auto& item : value) {
    if (is_deeper_than(item, levels - 1)) return true;
  }
  return false;
}

inline std::vector<std::uint8_t> cbor_of(const Context& context, const nlohmann::json& value) {
  if (is_deeper_than(value, kJsonDepth)) {
    throw Error(ErrorCode::invalid_argument,
                "an object of JSON goes deeper than " + std::to_string(kJsonDepth) +
                    " levels; send a flatter one, or its text by allgather_object()",
                context.rank());
  }
  return nlohmann::json::to_cbor(value);
}

template <class Bytes>
nlohmann::json json_of(const Bytes& bytes, int rank) {
  JsonDepth depth;
  const auto* const first = reinterpret_cast<const std::uint8_t*>(bytes.data());
  if (!nlohmann::json::sax_parse(first, first + bytes.size(), &depth,
                                 nlohmann::json::input_format_t::cbor)) {
    throw Error(ErrorCode::transport,
                "an object of rank " + std::to_string(rank) + " is no JSON that can be read: " +
                    depth.problem + ". Do all ranks send JSON under this name?",
                rank);
  }
  return nlohmann::json::from_cbor(bytes);
}

}  // namespace detail

/// Returns the root's value on every rank. A template: text is not taken for a json.
template <std::same_as<nlohmann::json> Json>
Json broadcast_object(const Context& context, const Json& value,
                      const BroadcastObjectOptions& options = {}) {
  std::vector<std::uint8_t> own;
  if (context.rank() == options.root) own = detail::cbor_of(context, value);
  return detail::json_of(broadcast_object(context, std::as_bytes(std::span(own)), options),
                         options.root);
}

/// Returns every rank's value, in the order of the set's ranks.
template <std::same_as<nlohmann::json> Json>
std::vector<Json> allgather_object(const Context& context, const Json& value,
                                   const AllgatherOptions& options = {}) {
  const std::vector<std::uint8_t> own = detail::cbor_of(context, value);
  const auto objects = allgather_object(context, std::as_bytes(std::span(own)), options);
  const auto ranks = ranks_of(context, options.process_set);
  std::vector<Json> values;
  for (std::size_t i = 0; i < objects.size(); ++i) {
    values.push_back(detail::json_of(objects[i], ranks[i]));
  }
  return values;
}

}  // namespace hora
