#include "ops/mpi/roll_call.h"

#include <hora/error.h>
#include <mpi.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "core/base/process.h"
#include "core/base/text.h"
#include "ops/mpi/check.h"
#include "ops/mpi/environment.h"

namespace hora::internal {
namespace {

constexpr int kComeTag = 32741;  ///< to the lowest rank of a list
constexpr int kWordTag = 32742;  ///< an answer to one that has arrived

using RollBytes = std::vector<std::byte>;

enum class RollKind : std::int32_t { come, contradiction, go, mismatch, missing };

/// Of every message. `serial` is the sender's of a call of the roll; answers have that of the rank
/// that they go to, so that none is taken for another call's.
struct RollHead {
  std::uint64_t serial = 0;
  RollKind kind = RollKind::come;
  std::int32_t about = -1;         ///< of a contradiction: the other rank
  std::uint64_t about_serial = 0;  ///< and its serial
};

struct RollMessage {
  int source = -1;
  RollHead head;
  RollBytes body;  ///< of `come` the list, else a text
};

RollBytes bytes_of(const std::string& text) {
  const auto bytes = std::as_bytes(std::span(text));
  return {bytes.begin(), bytes.end()};
}

RollBytes bytes_of(const std::vector<int>& ranks) {
  const auto bytes = std::as_bytes(std::span(ranks));
  return {bytes.begin(), bytes.end()};
}

std::string text_of(const RollBytes& bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

/// Those that are ranks of `comm`.
std::vector<int> ranks_of(const RollBytes& bytes, MPI_Comm comm) {
  std::vector<int> ranks(bytes.size() / sizeof(int));
  std::memcpy(ranks.data(), bytes.data(), ranks.size() * sizeof(int));
  int size = 0;
  mpi_check(MPI_Comm_size(comm, &size), "MPI_Comm_size");
  std::erase_if(ranks, [size](int rank) { return rank < 0 || rank >= size; });
  return ranks;
}

RollBytes joined(const RollHead& head, const RollBytes& body) {
  RollBytes bytes(sizeof head + body.size());
  std::memcpy(bytes.data(), &head, sizeof head);
  std::copy(body.begin(), body.end(), bytes.begin() + sizeof head);
  return bytes;
}

/// The next one that has arrived; does not wait. Throws Error(transport).
std::optional<RollMessage> next_message(MPI_Comm comm, int source, int tag) {
  int there = 0;
  MPI_Message handle = MPI_MESSAGE_NULL;
  MPI_Status status;
  mpi_check(MPI_Improbe(source, tag, comm, &there, &handle, &status), "MPI_Improbe");
  if (there == 0) return std::nullopt;
  int count = 0;
  mpi_check(MPI_Get_count(&status, MPI_BYTE, &count), "MPI_Get_count");
  RollBytes bytes(static_cast<std::size_t>(count));
  mpi_check(MPI_Mrecv(bytes.data(), count, MPI_BYTE, &handle, MPI_STATUS_IGNORE), "MPI_Mrecv");
  RollMessage message{status.MPI_SOURCE, {}, {}};
  if (bytes.size() < sizeof(RollHead)) {
    throw Error(ErrorCode::transport, "a message of tag " + std::to_string(tag) +
                                          " is not one of hora's: the application may not use it");
  }
  std::memcpy(&message.head, bytes.data(), sizeof(RollHead));
  message.body.assign(bytes.begin() + sizeof(RollHead), bytes.end());
  return message;
}

using Clock = std::chrono::steady_clock;

/// The answer comes from the rank that notices the timeout first.
constexpr std::chrono::seconds kSlack{2};

/// Ranks that have arrived for a later call already: one in whose list this rank is the lowest,
/// while it is in a call that does not concern them.
std::vector<std::pair<MPI_Comm, RollMessage>>& early_arrivals() {
  static std::vector<std::pair<MPI_Comm, RollMessage>> messages;
  return messages;
}

std::uint64_t next_serial() {
  static std::uint64_t serial = 0;
  return ++serial;
}

class RollCall {
 public:
  RollCall(MPI_Comm comm, const std::vector<int>& ranks, const std::string& what,
           const Patience& patience)
      : comm_(comm), ranks_(ranks), what_(what), patience_(patience) {
    mpi_check(MPI_Comm_rank(comm_, &own_rank_), "MPI_Comm_rank");
  }

  void run() {
    if (own_rank_ == ranks_.front()) {
      gather();
    } else {
      come();
    }
  }

 private:
  bool is_listed(int rank) const { return std::ranges::binary_search(ranks_, rank); }

  /// As ranks of MPI_COMM_WORLD: "ranks 0, 2-4".
  std::string text_of_ranks(const std::vector<int>& ranks) const {
    MPI_Group own_group = MPI_GROUP_NULL;
    MPI_Group world = MPI_GROUP_NULL;
    std::vector<int> global(ranks.size());
    mpi_check(MPI_Comm_group(comm_, &own_group), "MPI_Comm_group");
    mpi_check(MPI_Comm_group(MPI_COMM_WORLD, &world), "MPI_Comm_group");
    mpi_check(MPI_Group_translate_ranks(own_group, static_cast<int>(ranks.size()), ranks.data(),
                                        world, global.data()),
              "MPI_Group_translate_ranks");
    MPI_Group_free(&own_group);
    MPI_Group_free(&world);
    return ranks_text(global);
  }

  std::string this_rank() const {
    int rank = 0;
    mpi_check(MPI_Comm_rank(MPI_COMM_WORLD, &rank), "MPI_Comm_rank");
    return to_string(identity_of_process(rank));
  }

  std::string contradiction_of(int rank, const std::vector<int>& list) const {
    return what_ + ": rank " + text_of_ranks({rank}) + " has called it for ranks " +
           text_of_ranks(list) + ", rank " + text_of_ranks({own_rank_}) + " for ranks " +
           text_of_ranks(ranks_) + ": give both the same list (InitOptions::ranks)";
  }

  void send(int to, int tag, const RollHead& head, const RollBytes& body) const {
    const RollBytes bytes = joined(head, body);
    mpi_check(MPI_Send(bytes.data(), mpi_count(bytes.size(), "a message of init"), MPI_BYTE, to,
                       tag, comm_),
              "MPI_Send to", to);
  }

  std::optional<RollMessage> next_arrival() const {
    auto& early = early_arrivals();
    const auto found = std::ranges::find_if(early, [&](const auto& arrival) {
      return arrival.first == comm_ && is_listed(arrival.second.source);
    });
    if (found != early.end()) {
      RollMessage message = std::move(found->second);
      early.erase(found);
      return message;
    }
    return next_message(comm_, MPI_ANY_SOURCE, kComeTag);
  }

  /// The lowest rank: waits for the others' lists, and answers all at once.
  void gather() {
    std::map<int, std::uint64_t> serials;  // of those that have arrived
    std::vector<int> absent(ranks_.begin() + 1, ranks_.end());
    RollHead word{.kind = RollKind::go};
    std::string text;
    const auto contradicted = [&](const std::string& how) {
      if (word.kind == RollKind::go) text = how;
      word.kind = RollKind::mismatch;
    };
    while (!absent.empty()) {
      if (auto message = next_arrival()) {
        if (!is_listed(message->source)) {
          early_arrivals().emplace_back(comm_, std::move(*message));
        } else if (message->head.kind == RollKind::come) {
          serials[message->source] = message->head.serial;
          std::erase(absent, message->source);
          const std::vector<int> list = ranks_of(message->body, comm_);
          if (list != ranks_) contradicted(contradiction_of(message->source, list));
        } else if (const auto sender = serials.find(message->source);
                   sender != serials.end() && sender->second == message->head.serial) {
          serials[message->head.about] = message->head.about_serial;
          std::erase(absent, message->head.about);
          contradicted(text_of(message->body));
        }
        continue;
      }
      if (is_over(patience_.timeout)) {
        if (word.kind == RollKind::go) {
          word.kind = RollKind::missing;
          text = missing(absent);
        }
        break;
      }
      wait([&] {
        return this_rank() + " waits in " + what_ + " for ranks " + text_of_ranks(absent) +
               " of MPI_COMM_WORLD, which have not called it for " + seconds_text(waited());
      });
    }
    for (const auto& [rank, serial] : serials) {
      word.serial = serial;
      send(rank, kWordTag, word, bytes_of(text));
    }
    obey(word.kind, text);
  }

  std::string missing(const std::vector<int>& absent) const {
    return what_ + ": ranks " + text_of_ranks(absent) +
           " of MPI_COMM_WORLD have not called it within " + seconds_text(patience_.timeout) +
           " (HORA_INIT_TIMEOUT). Does each rank call it, and as often as the others?";
  }

  /// Any other rank: sends the lowest its list, and waits for its answer.
  void come() {
    const int lowest = ranks_.front();
    const std::uint64_t serial = next_serial();
    auto list = std::make_unique<RollBytes>(joined({.serial = serial}, bytes_of(ranks_)));
    MPI_Request request = MPI_REQUEST_NULL;
    // Synchronous: complete when the lowest rank has received it.
    mpi_check(MPI_Issend(list->data(), mpi_count(list->size(), "the list of ranks"), MPI_BYTE,
                         lowest, kComeTag, comm_, &request),
              "MPI_Issend to", lowest);
    const auto give_up = [&] {  // MPI may still read the list
      MPI_Request_free(&request);
      static_cast<void>(list.release());
    };
    int received = 0;
    for (;;) {
      if (received == 0) {
        mpi_check(MPI_Test(&request, &received, MPI_STATUS_IGNORE), "MPI_Test");
      }
      if (const auto word = next_message(comm_, MPI_ANY_SOURCE, kWordTag)) {
        if (word->head.serial != serial) continue;
        if (received == 0) mpi_check(MPI_Wait(&request, MPI_STATUS_IGNORE), "MPI_Wait");
        return obey(word->head.kind, text_of(word->body));
      }
      if (auto stray = next_arrival()) {
        report(std::move(*stray), serial);
        continue;
      }
      if (patience_.timeout.count() > 0 && is_over(patience_.timeout + kSlack)) {
        if (received == 0) give_up();
        obey(RollKind::missing, received == 0 ? missing({lowest}) : unanswered());
      }
      wait([&]() -> std::string {
        // Of those that miss the lowest rank, one reports it.
        if (received != 0 || own_rank_ != ranks_[1]) return {};
        return this_rank() + " waits in " + what_ + " for rank " + text_of_ranks({lowest}) +
               " of MPI_COMM_WORLD, which has not called it for " + seconds_text(waited());
      });
    }
  }

  std::string unanswered() const {
    return what_ + ": rank " + text_of_ranks({ranks_.front()}) +
           " of MPI_COMM_WORLD does not answer within " + seconds_text(patience_.timeout) +
           " (HORA_INIT_TIMEOUT)";
  }

  /// A rank in whose list this one is the lowest, so that their lists differ: the lowest of this
  /// rank's list answers it, too.
  void report(RollMessage stray, std::uint64_t serial) {
    if (!is_listed(stray.source)) {
      early_arrivals().emplace_back(comm_, std::move(stray));
      return;
    }
    if (stray.head.kind != RollKind::come) return;  // of an earlier call
    const std::string text = contradiction_of(stray.source, ranks_of(stray.body, comm_));
    send(ranks_.front(), kComeTag,
         {.serial = serial,
          .kind = RollKind::contradiction,
          .about = stray.source,
          .about_serial = stray.head.serial},
         bytes_of(text));
  }

  void obey(RollKind kind, const std::string& text) const {
    if (kind == RollKind::go) return;
    if (kind == RollKind::mismatch) throw Error(ErrorCode::mismatch, text);
    abandon_job();
    throw Error(ErrorCode::transport, text);
  }

  std::chrono::milliseconds waited() const {
    return std::chrono::duration_cast<std::chrono::milliseconds>(Clock::now() - begin_);
  }
  bool is_over(std::chrono::milliseconds limit) const {
    return patience_.timeout.count() > 0 && waited() >= limit;
  }
  static std::string seconds_text(std::chrono::milliseconds time) {
    return time.count() < 10000 ? std::to_string(time.count()) + " ms"
                                : std::to_string(time.count() / 1000) + " s";
  }

  /// One pause; at intervals with a warning, unless its text is empty.
  template <class Text>
  void wait(const Text& text) {
    constexpr std::chrono::milliseconds kBusy{5};
    if (waited() < kBusy) {
      std::this_thread::yield();
      return;
    }
    std::this_thread::sleep_for(std::chrono::microseconds(500));
    if (patience_.warning.count() == 0 || waited() < warned_ + patience_.warning) return;
    warned_ = waited();
    const std::string warning = text();
    if (!warning.empty() && patience_.warn) patience_.warn(warning);
  }

  MPI_Comm comm_;
  const std::vector<int>& ranks_;
  const std::string& what_;
  const Patience& patience_;
  int own_rank_ = 0;
  Clock::time_point begin_ = Clock::now();
  std::chrono::milliseconds warned_{0};
};

}  // namespace

void call_roll(MPI_Comm comm, const std::vector<int>& ranks, const std::string& what,
               const Patience& patience) {
  if (ranks.size() > 1) RollCall(comm, ranks, what, patience).run();
}

}  // namespace hora::internal
