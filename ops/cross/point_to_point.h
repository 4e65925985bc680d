/// Messages between the members of a cross group: the interface under the cross algorithms.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

namespace hora::internal {

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
  /// Of a receive, in place of test() from now on, after a failure: cancelled if no message has met
  /// it yet, else it goes on. True once, when nothing is written to its memory any more, whether or
  /// not a message has come; the number is free from then on. Does not throw.
  virtual bool withdraw(Request receive) = 0;

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
  /// Of receives, in place of the others from now on: true when all have been withdrawn.
  bool withdrawn(PointToPoint& link) {
    bool all = true;
    for (std::size_t i = completed_; i < requests_.size(); ++i) {
      if (requests_[i] != kNothing && link.withdraw(requests_[i])) requests_[i] = kNothing;
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
