#include <hora/error.h>
#include <hora/objects.h>
#include <hora/printable.h>
#include <hora/process_set.h>
#include <spdlog/fmt/fmt.h>

#include <algorithm>
#include <cstdint>
#include <cstring>

#include "core/api/internals.h"
#include "core/base/checked.h"

namespace hora {
using namespace internal;
namespace {

using Bytes = std::vector<std::byte>;

/// Objects up to this size travel with their size, in one round instead of two.
constexpr std::size_t kInlineBytes = std::size_t{64} << 10;

/// Sent first by every rank; on the root a short object follows it.
struct ObjectHead {
  std::int64_t root = 0;
  std::uint64_t bytes = 0;  ///< of the root's object
};

std::span<const std::byte> as_bytes(std::string_view text) {
  return std::as_bytes(std::span(text.data(), text.size()));
}

std::string as_text(std::span<const std::byte> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

/// Each rank's bytes, in memory that the result owns.
struct Parts {
  Result memory;
  std::vector<std::span<const std::byte>> of_rank;
};

Parts gather(const Context& context, std::span<const std::byte> own,
             const AllgatherOptions& options) {
  Parts parts{allgather(context, view(own), options), {}};
  const std::byte* next = parts.memory.data();
  for (const std::int64_t bytes : parts.memory.rows()) {
    parts.of_rank.emplace_back(next, static_cast<std::size_t>(bytes));
    next += bytes;
  }
  return parts;
}

/// A decoded message, with the object that follows it, if any.
struct ObjectMessage {
  ObjectHead head;
  std::span<const std::byte> object;
};

ObjectMessage head_in(std::span<const std::byte> bytes, int rank) {
  BoundedReader reader(bytes, {"the head of an object", rank, ErrorCode::mismatch});
  const ObjectHead head{reader.take<std::int64_t>(), reader.take<std::uint64_t>()};
  const bool sends = rank == head.root;
  if (sends ? head.bytes > kMaxBytes : head.bytes != 0) {
    reader.refuse(fmt::format("it names an object of {} bytes", head.bytes));
  }
  const auto object = reader.take_bytes(head.bytes <= kInlineBytes ? head.bytes : 0);
  reader.expect_end();
  return {head, object};
}

void check_roots(const std::vector<ObjectMessage>& heads, const std::vector<int>& ranks,
                 const std::string& name) {
  const ObjectHead& first = heads.front().head;
  for (std::size_t i = 1; i < ranks.size(); ++i) {
    const ObjectHead& other = heads[i].head;
    if (other.root == first.root) continue;
    throw Error(ErrorCode::mismatch,
                fmt::format("object {}: rank {} takes rank {} for the root, rank {} takes rank {}; "
                            "every rank must name the same one",
                            in_quotes(name), ranks.front(), first.root, ranks[i], other.root),
                ranks[i], name);
  }
}

std::size_t place_of_root(const std::vector<int>& ranks, const BroadcastObjectOptions& options) {
  const auto root = std::ranges::find(ranks, options.root);
  if (root != ranks.end()) return static_cast<std::size_t>(root - ranks.begin());
  throw Error(ErrorCode::invalid_argument,
              fmt::format("object {}: root {} is no rank of process set {}",
                          in_quotes(options.name), options.root, options.process_set.number()),
              -1, options.name);
}

std::string part_name(const std::string& name, const char* part) {
  return name.empty() ? name : name + "." + part;
}

void check_object(std::span<const std::byte> object, const std::string& name) {
  check_name(part_name(name, "object"));
  if ((object.data() != nullptr || object.empty()) && object.size() <= kMaxBytes) return;
  throw Error(ErrorCode::invalid_argument,
              fmt::format("object {}: {} bytes at {}", in_quotes(name), object.size(),
                          object.data() ? "its address: at most 2^48" : "a null address"),
              -1, name);
}

Bytes message_of(std::span<const std::byte> object, const ObjectHead& head, bool with_object) {
  Bytes message(sizeof head);
  std::memcpy(message.data(), &head, sizeof head);
  if (with_object) message.insert(message.end(), object.begin(), object.end());
  return message;
}

}  // namespace

Bytes broadcast_object(const Context& context, std::span<const std::byte> object,
                       const BroadcastObjectOptions& options) {
  const bool sends = context.rank() == options.root;
  check_object(sends ? object : std::span<const std::byte>{}, options.name);
  const std::vector<int> ranks = ranks_of(context, options.process_set);
  const std::size_t root = place_of_root(ranks, options);
  const ObjectHead own{options.root, sends ? object.size() : 0};
  const Parts parts =
      gather(context, message_of(object, own, sends && object.size() <= kInlineBytes),
             {.name = part_name(options.name, "head"), .process_set = options.process_set});
  std::vector<ObjectMessage> heads;
  for (std::size_t i = 0; i < ranks.size(); ++i) {
    heads.push_back(head_in(parts.of_rank[i], ranks[i]));
  }
  check_roots(heads, ranks, options.name);

  const auto bytes = static_cast<std::size_t>(heads[root].head.bytes);
  const auto inlined = heads[root].object;
  if (bytes <= kInlineBytes) return {inlined.begin(), inlined.end()};
  Bytes result(bytes);
  if (sends) std::memcpy(result.data(), object.data(), bytes);
  broadcast(context, view(result),
            {.name = part_name(options.name, "object"),
             .root = options.root,
             .process_set = options.process_set});
  return result;
}

std::string broadcast_object(const Context& context, std::string_view object,
                             const BroadcastObjectOptions& options) {
  return as_text(broadcast_object(context, as_bytes(object), options));
}

std::vector<Bytes> allgather_object(const Context& context, std::span<const std::byte> object,
                                    const AllgatherOptions& options) {
  check_object(object, options.name);
  std::vector<Bytes> objects;
  const Parts parts = gather(context, object, options);
  for (const auto& part : parts.of_rank) objects.emplace_back(part.begin(), part.end());
  return objects;
}

std::vector<std::string> allgather_object(const Context& context, std::string_view object,
                                          const AllgatherOptions& options) {
  check_object(as_bytes(object), options.name);
  std::vector<std::string> objects;
  const Parts parts = gather(context, as_bytes(object), options);
  for (const auto& part : parts.of_rank) objects.push_back(as_text(part));
  return objects;
}

}  // namespace hora
