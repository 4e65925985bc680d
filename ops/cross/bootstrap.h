/// The collectives of start-up, before hora's own messages exist: the interface under the discovery
/// of nodes and the agreement on settings and GPUs.
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "core/base/checked.h"

namespace hora::internal {

/// The ranks of a job, or those of one host. Every member but the accessors is collective over them
/// and blocks. Failures throw Error(transport). Thread rule: one thread at a time.
class Bootstrap {
 public:
  virtual ~Bootstrap() = default;
  int rank() const noexcept { return rank_; }  ///< this one's place among them
  int size() const noexcept { return size_; }

  /// Every rank's bytes, by rank; lengths may differ. At most 2^31 - 1 bytes in total.
  virtual std::vector<std::vector<std::byte>> all_gather(std::span<const std::byte> bytes) = 0;
  /// The root's bytes; those of the others are ignored.
  virtual std::vector<std::byte> broadcast(std::span<const std::byte> bytes, int root) = 0;
  virtual void barrier() = 0;
  /// The ranks that may be able to share memory with this one, in rank order.
  virtual std::unique_ptr<Bootstrap> of_host() = 0;

 protected:
  Bootstrap(int rank, int size) noexcept : rank_(rank), size_(size) {}
  Bootstrap(const Bootstrap&) = default;
  Bootstrap& operator=(const Bootstrap&) = default;

 private:
  int rank_;
  int size_;
};

/// Every rank's value, of a type without padding, by rank. Collective.
template <class T>
std::vector<T> all_gather_values(Bootstrap& ranks, const T& own) {
  std::vector<T> values;
  for (const auto& bytes : ranks.all_gather(std::as_bytes(std::span(&own, 1)))) {
    values.push_back(BoundedReader(bytes, {"what a rank says of itself"}).take<T>());
  }
  return values;
}

inline std::string text_of(std::span<const std::byte> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

/// Every rank's text, by rank. Collective.
inline std::vector<std::string> gather_texts(Bootstrap& ranks, const std::string& own) {
  std::vector<std::string> texts;
  for (const auto& bytes : ranks.all_gather(std::as_bytes(std::span(own)))) {
    texts.push_back(text_of(bytes));
  }
  return texts;
}

/// The root's text; those of the others are ignored. Collective.
inline std::string broadcast_text(Bootstrap& ranks, const std::string& text, int root) {
  return text_of(ranks.broadcast(std::as_bytes(std::span(text)), root));
}

}  // namespace hora::internal
