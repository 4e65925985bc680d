#include <hora/error.h>
#include <hora/objects.h>
#include <hora/printable.h>
#include <hora/process_set.h>

#include <cstdint>
#include <cstring>
#include <utility>

namespace hora {
namespace {

using Bytes = std::vector<std::byte>;

/// Objects up to this size travel with their size, in one round instead of two.
constexpr std::size_t kInlineBytes = std::size_t{64} << 10;

/// What every rank tells the others first, followed on the root by an object that is not too long.
struct Head {
  std::int64_t root = 0;
  std::uint64_t bytes = 0;  ///< of the root's object
};

std::span<const std::byte> as_bytes(std::string_view text) {
  return std::as_bytes(std::span(text.data(), text.size()));
}

std::string as_text(std::span<const std::byte> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

/// Each rank's bytes, in memory of the result's.
struct Parts {
  Result memory;
  std::vector<std::span<const std::byte>> of_rank;
};

Parts gather(const Context& context, std::span<const std::byte> mine,
             const AllgatherOptions& options) {
  // Collectives take writable memory, as their views serve results, too; this one only reads it.
  auto* data = reinterpret_cast<std::uint8_t*>(const_cast<std::byte*>(mine.data()));
  Parts parts{allgather(context, view(data, static_cast<std::int64_t>(mine.size())), options), {}};
  const std::byte* next = parts.memory.data();
  for (const std::int64_t bytes : parts.memory.rows()) {
    parts.of_rank.emplace_back(next, static_cast<std::size_t>(bytes));
    next += bytes;
  }
  return parts;
}

Head head_in(std::span<const std::byte> bytes) {
  Head head;
  std::memcpy(&head, bytes.data(), sizeof head);
  return head;
}

void check_roots(const Parts& heads, const std::vector<int>& ranks, const std::string& name) {
  const Head first = head_in(heads.of_rank.front());
  for (std::size_t i = 1; i < ranks.size(); ++i) {
    const Head other = head_in(heads.of_rank[i]);
    if (other.root == first.root) continue;
    throw Error(ErrorCode::mismatch,
                "object " + in_quotes(name) + ": rank " + std::to_string(ranks.front()) +
                    " takes rank " + std::to_string(first.root) + " for the root, rank " +
                    std::to_string(ranks[i]) + " takes rank " + std::to_string(other.root) +
                    "; every rank must name the same one",
                ranks[i], name);
  }
}

std::size_t place_of_root(const std::vector<int>& ranks, const BroadcastObjectOptions& options) {
  for (std::size_t i = 0; i < ranks.size(); ++i) {
    if (ranks[i] == options.root) return i;
  }
  throw Error(ErrorCode::invalid_argument,
              "object " + in_quotes(options.name) + ": root " + std::to_string(options.root) +
                  " is no rank of process set " + std::to_string(options.process_set),
              -1, options.name);
}

std::string part_name(const std::string& name, const char* part) {
  return name.empty() ? name : name + "." + part;
}

Bytes message_of(std::span<const std::byte> object, const Head& head, bool with_object) {
  Bytes message(sizeof head);
  std::memcpy(message.data(), &head, sizeof head);
  if (with_object) message.insert(message.end(), object.begin(), object.end());
  return message;
}

}  // namespace

Bytes broadcast_object(const Context& context, std::span<const std::byte> object,
                       const BroadcastObjectOptions& options) {
  const std::vector<int> ranks = ranks_of(context, options.process_set);
  const std::size_t root = place_of_root(ranks, options);
  const bool sends = context.rank() == options.root;
  const Head mine{options.root, sends ? object.size() : 0};
  const Parts heads =
      gather(context, message_of(object, mine, sends && object.size() <= kInlineBytes),
             {.name = part_name(options.name, "head"), .process_set = options.process_set});
  check_roots(heads, ranks, options.name);

  const auto of_root = heads.of_rank[root];
  const auto bytes = static_cast<std::size_t>(head_in(of_root).bytes);
  if (bytes <= kInlineBytes) return {of_root.begin() + sizeof(Head), of_root.end()};
  Bytes result(bytes);
  if (sends) std::memcpy(result.data(), object.data(), bytes);
  broadcast(context,
            view(reinterpret_cast<std::uint8_t*>(result.data()), static_cast<std::int64_t>(bytes)),
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
  std::vector<Bytes> objects;
  const Parts parts = gather(context, object, options);
  for (const auto& part : parts.of_rank) objects.emplace_back(part.begin(), part.end());
  return objects;
}

std::vector<std::string> allgather_object(const Context& context, std::string_view object,
                                          const AllgatherOptions& options) {
  std::vector<std::string> objects;
  const Parts parts = gather(context, as_bytes(object), options);
  for (const auto& part : parts.of_rank) objects.push_back(as_text(part));
  return objects;
}

}  // namespace hora
