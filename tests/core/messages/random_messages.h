/// Random values of everything that negotiation exchanges.
#pragma once

#include <chrono>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "core/base/checked.h"
#include "core/messages/messages.h"

namespace hora::internal::test {

class RandomMessages {
 public:
  explicit RandomMessages(std::mt19937_64& random) : random_(random) {}

  Message any() {
    switch (below(4)) {
      case 0:
        return mail();
      case 1:
        return up();
      case 2:
        return job_end();
      default:
        return decision();
    }
  }

  Mail mail() {
    Mail result{.kind = static_cast<MailKind>(below(static_cast<int>(last_of<MailKind>) + 1)),
                .name = text(),
                .signature = signature(),
                .location = location(),
                .process_set = ProcessSet(number<std::uint32_t>())};
    if (result.kind == MailKind::expiring) result.expiry = expiry();
    return result;
  }

  Up up() {
    Up result{.process_set = ProcessSet(number<std::uint32_t>()),
              .ready = numbers<Id>(),
              .reports = {},
              .presence = {},
              .departed = numbers<int>()};
    for (int i = below(4); i > 0; --i) {
      Report report{text(), {}, {}};
      for (int v = 1 + below(3); v > 0; --v) report.values.push_back({signature(), numbers<int>()});
      if (below(2) == 0) report.counted = number<Id>();
      result.reports.push_back(std::move(report));
    }
    for (int i = below(3); i > 0; --i) {
      result.presence.push_back({text(), numbers<int>(), numbers<int>()});
      for (int r = below(3); r > 0; --r) result.presence.back().remarks.push_back(text());
      result.presence.back().is_answer = below(2) == 0;
    }
    for (int i = below(3); i > 0; --i) {
      result.expiring.push_back({text(), number<int>(), expiry()});
    }
    if (below(2) == 0) result.resized = numbers<Id>();
    for (int i = below(3); i > 0; --i) {
      result.last.push_back({number<int>(), number<std::uint32_t>()});
    }
    for (int i = below(3); i > 0; --i) {
      result.elsewhere.push_back({text(), number<int>(), ProcessSet(number<std::uint32_t>())});
    }
    return result;
  }

  Expiry expiry() {
    return {std::chrono::milliseconds(number<std::int64_t>() &
                                      std::numeric_limits<std::int64_t>::max()),
            std::chrono::milliseconds(below(static_cast<int>(Expiry::kMostLeft.count()) + 1)),
            below(2) == 0};
  }

  Decision decision() {
    Decision result{.process_set = ProcessSet(number<std::uint32_t>()),
                    .number = number<std::uint64_t>(),
                    .retired = numbers<Id>(),
                    .failed = {},
                    .assigned = {},
                    .run = numbers<Id>(),
                    .departed = numbers<int>(),
                    .finished = below(2) == 0};
    for (int i = below(3); i > 0; --i) {
      const bool has_id = below(2) == 0;
      result.failed.push_back({text(), text(), has_id, number<Id>()});
    }
    for (int i = below(4); i > 0; --i) {
      Assigned assigned{text(), number<Id>(), {}};
      if (below(2) == 0) assigned.signature = signature();
      for (int r = below(5); r > 0; --r) assigned.locations.push_back(location());
      result.assigned.push_back(std::move(assigned));
    }
    if (below(2) == 0) result.resized = numbers<Id>();
    for (int i = below(3); i > 0; --i) result.asked.push_back(text());
    return result;
  }

  JobEnd job_end() {
    return {.code = static_cast<ErrorCode>(below(static_cast<int>(last_of<ErrorCode>) + 1)),
            .rank = number<int>(),
            .text = text(),
            .tensor = text()};
  }

 private:
  int below(int limit) { return static_cast<int>(random_() % static_cast<std::uint64_t>(limit)); }
  template <class T>
  T number() {
    // Small ones, the extremes, and anything else.
    switch (below(4)) {
      case 0:
        return std::numeric_limits<T>::max();
      case 1:
        return std::numeric_limits<T>::min();
      case 2:
        return static_cast<T>(below(10));
      default:
        return static_cast<T>(random_());
    }
  }
  template <class T>
  std::vector<T> numbers() {
    std::vector<T> values(static_cast<std::size_t>(below(6)));
    for (T& value : values) value = number<T>();
    return values;
  }
  std::string text() {
    std::string result(static_cast<std::size_t>(below(5) == 0 ? below(1025) : below(12)), ' ');
    for (char& c : result) c = static_cast<char>(1 + below(255));
    return result;
  }
  Location location() { return {number<std::uint32_t>(), 0, number<std::uint64_t>()}; }
  Signature signature() {
    return {.kind = static_cast<OperationKind>(below(3)),
            .type = static_cast<DataType>(below(static_cast<int>(last_of<DataType>) + 1)),
            .op = static_cast<ReduceOp>(below(6)),
            .device = static_cast<DeviceKind>(below(2)),
            .root = number<std::int32_t>(),
            .shape = numbers<std::int64_t>()};
  }

  std::mt19937_64& random_;
};

}  // namespace hora::internal::test
