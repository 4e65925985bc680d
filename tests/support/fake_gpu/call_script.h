/// Counts calls by name, and says which of them fail.
#pragma once

#include <chrono>
#include <initializer_list>
#include <map>
#include <mutex>
#include <string>
#include <string_view>

namespace hora::internal::test {

/// A name that was not announced is std::invalid_argument. Thread rule: any thread.
class CallScript {
 public:
  explicit CallScript(std::initializer_list<std::string_view> calls);

  /// Counts a call; the error it shall end with, 0 for none.
  int begin(std::string_view call);
  int count(std::string_view call) const;
  void fail(std::string_view call, int nth, int error);
  void delay(std::string_view call, std::chrono::microseconds duration);
  std::chrono::microseconds delay_of(std::string_view call) const;
  bool knows(std::string_view call) const { return entries_.contains(call); }

 private:
  struct Entry {
    int count = 0;
    std::map<int, int> errors;  ///< by number of the call
    int always = 0;             ///< the error of every call
    std::chrono::microseconds delay{0};
  };
  Entry& entry(std::string_view call);
  const Entry& entry(std::string_view call) const;

  mutable std::mutex mutex_;
  std::map<std::string, Entry, std::less<>> entries_;
};

}  // namespace hora::internal::test
