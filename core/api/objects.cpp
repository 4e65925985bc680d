#include <hora/error.h>
#include <hora/objects.h>
#include <hora/printable.h>
#include <spdlog/fmt/fmt.h>

#include <algorithm>
#include <cstdint>

#include "core/api/internals.h"
#include "core/base/checked.h"

namespace hora {
using namespace internal;
namespace {

using Bytes = std::vector<std::byte>;

std::span<const std::byte> as_bytes(std::string_view text) {
  return std::as_bytes(std::span(text.data(), text.size()));
}

std::string as_text(std::span<const std::byte> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
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

}  // namespace

/// In two collectives: its length, then its bytes.
Bytes broadcast_object(const Context& context, std::span<const std::byte> object,
                       const BroadcastObjectOptions& options) {
  const bool sends = context.rank() == options.root;
  if (sends) check_object(object, options.name);
  BroadcastOptions part{.name = part_name(options.name, "length"),
                        .root = options.root,
                        .process_set = options.process_set};
  std::uint64_t bytes = sends ? object.size() : 0;
  broadcast(context, view(bytes), part);
  if (bytes > kMaxBytes) {
    throw Error(ErrorCode::mismatch,
                fmt::format("object {}: rank {} names a length of {} bytes. Do all ranks call the "
                            "same collectives?",
                            in_quotes(options.name), options.root, bytes),
                options.root, options.name);
  }
  Bytes result(bytes);
  if (sends) std::ranges::copy(object, result.begin());
  part.name = part_name(options.name, "object");
  broadcast(context, view(result), part);
  return result;
}

std::string broadcast_object(const Context& context, std::string_view object,
                             const BroadcastObjectOptions& options) {
  return as_text(broadcast_object(context, as_bytes(object), options));
}

std::vector<Bytes> allgather_object(const Context& context, std::span<const std::byte> object,
                                    const AllgatherOptions& options) {
  check_object(object, options.name);
  const Result all = allgather(context, view(object), options);
  std::vector<Bytes> objects;
  const std::byte* next = all.data();
  for (const std::int64_t bytes : all.rows()) {
    objects.emplace_back(next, next + bytes);
    next += bytes;
  }
  return objects;
}

std::vector<std::string> allgather_object(const Context& context, std::string_view object,
                                          const AllgatherOptions& options) {
  std::vector<std::string> objects;
  for (const Bytes& each : allgather_object(context, as_bytes(object), options)) {
    objects.push_back(as_text(each));
  }
  return objects;
}

}  // namespace hora
