/// Interfaces to the network: the collectives of start-up, before hora's own messages exist, under
/// the discovery of nodes and the agreement on settings and GPUs; and messages between the members
/// of a cross group, under its algorithms.
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
  void barrier() { all_gather({}); }
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

/// Every rank's text, by rank. Collective.
inline std::vector<std::string> gather_texts(Bootstrap& ranks, const std::string& own) {
  std::vector<std::string> texts;
  for (const auto& bytes : ranks.all_gather(std::as_bytes(std::span(own)))) {
    texts.emplace_back(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  }
  return texts;
}

/// Requests are small numbers from 0, valid until they complete. Failures throw Error(transport).
/// Thread rule: one thread at a time.
class PointToPoint {
 public:
  using Request = int;
  virtual ~PointToPoint() = default;
  int index() const noexcept { return index_; }  ///< this member's in the group
  int size() const noexcept { return size_; }    ///< members of the group
  /// Starts to send; the memory must stay, unchanged, until the request completes. Messages of one
  /// tag between two members arrive in the order in which they were started. `tag` in [0, 32767].
  virtual Request send(int to, int tag, std::span<const std::byte> bytes) = 0;
  /// Starts to receive exactly as many bytes.
  virtual Request receive(int from, int tag, std::span<std::byte> bytes) = 0;
  /// Makes progress. True once, when the request has completed; the number is free from then on.
  virtual bool test(Request request) = 0;
  /// Cancels a receive after a failure, in place of test() from now on: where a message has met it
  /// already, it goes on. True once, when nothing is written to its memory any more; the number is
  /// free from then on. Does not throw.
  virtual bool cancel(Request receive) = 0;

 protected:
  PointToPoint(int index, int size) noexcept : index_(index), size_(size) {}

 private:
  int index_;
  int size_;
};

/// Requests that are waited for in the order in which they were added.
class RequestQueue {
 public:
  /// In a request's place: nothing is sent, or received.
  static constexpr PointToPoint::Request kNothing = -1;

  void clear() {
    requests_.clear();
    completed_ = 0;
  }
  void add(PointToPoint::Request request) { requests_.push_back(request); }
  std::size_t completed() const noexcept { return completed_; }
  bool all_completed() const noexcept { return completed_ == requests_.size(); }
  /// Tests the oldest open one: true when there was one and it has completed.
  bool next_completed(PointToPoint& link) {
    if (all_completed()) return false;
    const PointToPoint::Request request = requests_[completed_];
    if (request != kNothing && !link.test(request)) return false;
    ++completed_;
    return true;
  }
  /// Cancels receives, in place of the others from now on: true when all are cancelled.
  bool cancelled(PointToPoint& link) {
    bool all = true;
    for (std::size_t i = completed_; i < requests_.size(); ++i) {
      if (requests_[i] != kNothing && link.cancel(requests_[i])) requests_[i] = kNothing;
      all = all && requests_[i] == kNothing;
    }
    return all;
  }
  /// True when all that were added have completed.
  bool drained(PointToPoint& link) {
    while (next_completed(link)) {
    }
    return all_completed();
  }

 private:
  std::vector<PointToPoint::Request> requests_;
  std::size_t completed_ = 0;
};

}  // namespace hora::internal
