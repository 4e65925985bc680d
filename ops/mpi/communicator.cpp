#include "ops/mpi/communicator.h"

#if defined(HORA_MPI_HAS_ULFM)  // Open MPI 5, and MPI libraries that have its extension
#include <mpi-ext.h>
#endif

#include <iterator>
#include <new>
#include <numeric>

#include "core/base/text.h"
#include "ops/mpi/environment.h"

namespace hora::internal {
namespace {

struct OwnedGroup {
  OwnedGroup() = default;
  explicit OwnedGroup(MPI_Comm comm) { mpi_check(MPI_Comm_group(comm, &handle), "MPI_Comm_group"); }
  OwnedGroup(const OwnedGroup&) = delete;
  OwnedGroup& operator=(const OwnedGroup&) = delete;
  ~OwnedGroup() {
    if (handle != MPI_GROUP_NULL) MPI_Group_free(&handle);
  }
  MPI_Group handle = MPI_GROUP_NULL;
};

}  // namespace

std::vector<int> failed_ranks([[maybe_unused]] int result) {
  std::vector<int> ranks;
#if defined(HORA_MPI_HAS_ULFM)
  int error_class = MPI_SUCCESS;
  OwnedGroup failed, world;
  int size = 0;
  if (MPI_Error_class(result, &error_class) != MPI_SUCCESS ||
      (error_class != MPIX_ERR_PROC_FAILED && error_class != MPIX_ERR_PROC_FAILED_PENDING &&
       error_class != MPIX_ERR_REVOKED) ||
      MPIX_Comm_get_failed(MPI_COMM_WORLD, &failed.handle) != MPI_SUCCESS ||
      MPI_Group_size(failed.handle, &size) != MPI_SUCCESS || size == 0 ||
      MPI_Comm_group(MPI_COMM_WORLD, &world.handle) != MPI_SUCCESS) {
    return ranks;
  }
  std::vector<int> own(static_cast<std::size_t>(size));
  std::iota(own.begin(), own.end(), 0);
  ranks.resize(own.size(), MPI_UNDEFINED);
  if (MPI_Group_translate_ranks(failed.handle, size, own.data(), world.handle, ranks.data()) !=
      MPI_SUCCESS) {
    return {};
  }
  std::erase(ranks, MPI_UNDEFINED);
  std::ranges::sort(ranks);
#endif
  return ranks;
}

bool mpi_is_finalized() noexcept {
  int finalized = 0;
  return MPI_Finalized(&finalized) != MPI_SUCCESS || finalized != 0;
}

void throw_mpi_error(int result, std::string_view call, int peer) {
  std::array<char, MPI_MAX_ERROR_STRING> text{};
  int length = 0;
  std::string what(call);
  if (peer != kNoPeer) what += fmt::format(" rank {}", peer);
  if (MPI_Error_string(result, text.data(), &length) == MPI_SUCCESS) {
    what +=
        fmt::format(" failed: {}", std::string_view(text.data(), static_cast<std::size_t>(length)));
  } else {
    what += fmt::format(" failed: error code {}", result);
  }
  if (const auto failed = failed_ranks(result); !failed.empty()) {
    what += fmt::format("; {} ended (of MPI_COMM_WORLD)", ranks_have(failed));
  }
  throw Error(ErrorCode::transport, what, peer);
}

int mpi_count(std::size_t bytes, std::string_view what) {
  if (std::in_range<int>(bytes)) return static_cast<int>(bytes);
  throw Error(ErrorCode::transport,
              fmt::format("{} is {} bytes long; one MPI call moves at most {}", what, bytes,
                          std::numeric_limits<int>::max()));
}

namespace {

constexpr int kComeTag = 32741;  ///< to the lowest rank of a list
constexpr int kWordTag = 32742;  ///< an answer to one that has arrived

using BarrierBytes = std::vector<std::byte>;

enum class BarrierKind : std::int32_t { come, contradiction, go, mismatch, missing };

/// Head of every message. `serial` is the sender's of a startup barrier; answers have that of the
/// rank that they go to, so that none is taken for another call's.
struct BarrierHead {
  std::uint64_t serial = 0;
  BarrierKind kind = BarrierKind::come;
  std::int32_t about = -1;         ///< of a contradiction: the other rank
  std::uint64_t about_serial = 0;  ///< and its serial
};

struct BarrierMessage {
  int source = -1;
  BarrierHead head;
  BarrierBytes body;  ///< of `come` the list, else a text

  std::string text() const { return {reinterpret_cast<const char*>(body.data()), body.size()}; }
};

template <class Values>
BarrierBytes bytes_of(const Values& values) {
  const auto bytes = std::as_bytes(std::span(values));
  return {bytes.begin(), bytes.end()};
}

std::vector<int> ranks_of(const BarrierBytes& bytes) {
  std::vector<int> ranks(bytes.size() / sizeof(int));
  std::memcpy(ranks.data(), bytes.data(), ranks.size() * sizeof(int));
  return ranks;
}

BarrierBytes joined(const BarrierHead& head, const BarrierBytes& body) {
  BarrierBytes bytes(sizeof head + body.size());
  std::memcpy(bytes.data(), &head, sizeof head);
  std::copy(body.begin(), body.end(), bytes.begin() + sizeof head);
  return bytes;
}

/// The next one that has arrived; does not wait. Throws Error(transport).
std::optional<BarrierMessage> next_message(MPI_Comm comm, int source, int tag) {
  int there = 0;
  MPI_Message handle = MPI_MESSAGE_NULL;
  MPI_Status status;
  mpi_check(MPI_Improbe(source, tag, comm, &there, &handle, &status), "MPI_Improbe");
  if (there == 0) return std::nullopt;
  int count = 0;
  mpi_check(MPI_Get_count(&status, MPI_BYTE, &count), "MPI_Get_count");
  BarrierBytes bytes(static_cast<std::size_t>(count));
  mpi_check(MPI_Mrecv(bytes.data(), count, MPI_BYTE, &handle, MPI_STATUS_IGNORE), "MPI_Mrecv");
  BarrierMessage message{status.MPI_SOURCE, {}, {}};
  if (bytes.size() < sizeof(BarrierHead)) {
    throw Error(
        ErrorCode::transport,
        fmt::format("a message of tag {} is not one of hora's: the application may not use it",
                    tag));
  }
  std::memcpy(&message.head, bytes.data(), sizeof(BarrierHead));
  message.body.assign(bytes.begin() + sizeof(BarrierHead), bytes.end());
  return message;
}

using Clock = std::chrono::steady_clock;

/// The answer comes from the rank that notices the timeout first.
constexpr std::chrono::seconds kSlack{2};

/// Ranks that have arrived for a later call already: one in whose list this rank is the lowest,
/// while it is in a call that does not concern them.
std::vector<std::pair<MPI_Comm, BarrierMessage>>& early_arrivals() {
  static std::vector<std::pair<MPI_Comm, BarrierMessage>> messages;
  return messages;
}

std::uint64_t next_serial() {
  static std::uint64_t serial = 0;
  return ++serial;
}

class StartupBarrier {
 public:
  StartupBarrier(MPI_Comm comm, const std::vector<int>& ranks, const std::string& what,
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
    const OwnedGroup own(comm_);
    const OwnedGroup world(MPI_COMM_WORLD);
    std::vector<int> global(ranks.size());
    mpi_check(MPI_Group_translate_ranks(own.handle, static_cast<int>(ranks.size()), ranks.data(),
                                        world.handle, global.data()),
              "MPI_Group_translate_ranks");
    return ranks_text(global);
  }

  std::string this_rank() const {
    int rank = 0;
    mpi_check(MPI_Comm_rank(MPI_COMM_WORLD, &rank), "MPI_Comm_rank");
    return to_string(identity_of_process(rank));
  }

  std::string contradiction_of(int rank, const std::vector<int>& list) const {
    return fmt::format(
        "{}: rank {} has called it for ranks {}, rank {} for ranks {}: give both the same list "
        "(InitOptions::ranks)",
        what_, text_of_ranks({rank}), text_of_ranks(list), text_of_ranks({own_rank_}),
        text_of_ranks(ranks_));
  }

  void send(int to, int tag, const BarrierHead& head, const BarrierBytes& body) const {
    const BarrierBytes bytes = joined(head, body);
    mpi_check(MPI_Send(bytes.data(), mpi_count(bytes.size(), "a message of init"), MPI_BYTE, to,
                       tag, comm_),
              "MPI_Send to", to);
  }

  std::optional<BarrierMessage> next_arrival() const {
    auto& early = early_arrivals();
    const auto found = std::ranges::find_if(early, [&](const auto& arrival) {
      return arrival.first == comm_ && is_listed(arrival.second.source);
    });
    if (found != early.end()) {
      BarrierMessage message = std::move(found->second);
      early.erase(found);
      return message;
    }
    return next_message(comm_, MPI_ANY_SOURCE, kComeTag);
  }

  /// The lowest rank: waits for the others' lists, and answers all at once.
  void gather() {
    std::map<int, std::uint64_t> serials;  // of those that have arrived
    std::vector<int> absent(ranks_.begin() + 1, ranks_.end());
    BarrierHead word{.kind = BarrierKind::go};
    std::string text;
    const auto contradicted = [&](const std::string& how) {
      if (word.kind == BarrierKind::go) text = how;
      word.kind = BarrierKind::mismatch;
    };
    while (!absent.empty()) {
      if (auto message = next_arrival()) {
        if (!is_listed(message->source)) {
          early_arrivals().emplace_back(comm_, std::move(*message));
        } else if (message->head.kind == BarrierKind::come) {
          serials[message->source] = message->head.serial;
          std::erase(absent, message->source);
          const std::vector<int> list = ranks_of(message->body);
          if (list != ranks_) contradicted(contradiction_of(message->source, list));
        } else if (const auto sender = serials.find(message->source);
                   sender != serials.end() && sender->second == message->head.serial) {
          serials[message->head.about] = message->head.about_serial;
          std::erase(absent, message->head.about);
          contradicted(message->text());
        }
        continue;
      }
      if (is_over(patience_.timeout)) {
        if (word.kind == BarrierKind::go) {
          word.kind = BarrierKind::missing;
          text = missing(absent);
        }
        break;
      }
      wait([&] {
        return fmt::format(
            "{} waits in {} for ranks {} of MPI_COMM_WORLD, which have not called it for {}",
            this_rank(), what_, text_of_ranks(absent), seconds_text(waited()));
      });
    }
    for (const auto& [rank, serial] : serials) {
      word.serial = serial;
      send(rank, kWordTag, word, bytes_of(text));
    }
    obey(word.kind, text);
  }

  std::string missing(const std::vector<int>& absent) const {
    return fmt::format(
        "{}: ranks {} of MPI_COMM_WORLD have not called it within {} (HORA_INIT_TIMEOUT). Does "
        "each "
        "rank call it, and as often as the others?",
        what_, text_of_ranks(absent), seconds_text(patience_.timeout));
  }

  /// Any other rank: sends the lowest its list, and waits for its answer.
  void come() {
    const int lowest = ranks_.front();
    const std::uint64_t serial = next_serial();
    auto list = std::make_unique<BarrierBytes>(joined({.serial = serial}, bytes_of(ranks_)));
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
      if (received == 0) mpi_check(MPI_Test(&request, &received, MPI_STATUS_IGNORE), "MPI_Test");
      if (const auto word = next_message(comm_, MPI_ANY_SOURCE, kWordTag)) {
        if (word->head.serial != serial) continue;
        if (received == 0) mpi_check(MPI_Wait(&request, MPI_STATUS_IGNORE), "MPI_Wait");
        return obey(word->head.kind, word->text());
      }
      if (auto stray = next_arrival()) {
        report(std::move(*stray), serial);
        continue;
      }
      if (patience_.timeout.count() > 0 && is_over(patience_.timeout + kSlack)) {
        if (received == 0) give_up();
        obey(BarrierKind::missing, received == 0 ? missing({lowest}) : unanswered());
      }
      wait([&]() -> std::string {
        // One of those that miss the lowest rank reports it.
        if (received != 0 || own_rank_ != ranks_[1]) return {};
        return fmt::format(
            "{} waits in {} for rank {} of MPI_COMM_WORLD, which has not called it for {}",
            this_rank(), what_, text_of_ranks({lowest}), seconds_text(waited()));
      });
    }
  }

  std::string unanswered() const {
    return fmt::format(
        "{}: rank {} of MPI_COMM_WORLD does not answer within {} (HORA_INIT_TIMEOUT)", what_,
        text_of_ranks({ranks_.front()}), seconds_text(patience_.timeout));
  }

  /// A rank in whose list this one is the lowest, so that their lists differ: the lowest of this
  /// rank's list answers it, too.
  void report(BarrierMessage stray, std::uint64_t serial) {
    if (!is_listed(stray.source)) {
      early_arrivals().emplace_back(comm_, std::move(stray));
      return;
    }
    if (stray.head.kind != BarrierKind::come) return;  // of an earlier call
    const std::string text = contradiction_of(stray.source, ranks_of(stray.body));
    send(ranks_.front(), kComeTag,
         {.serial = serial,
          .kind = BarrierKind::contradiction,
          .about = stray.source,
          .about_serial = stray.head.serial},
         bytes_of(text));
  }

  void obey(BarrierKind kind, const std::string& text) const {
    if (kind == BarrierKind::go) return;
    if (kind == BarrierKind::mismatch) throw Error(ErrorCode::mismatch, text);
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
    return time.count() < 10000 ? fmt::format("{} ms", time.count())
                                : fmt::format("{} s", time.count() / 1000);
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

std::vector<int> all_ranks_of(MPI_Comm comm) {
  int size = 0;
  mpi_check(MPI_Comm_size(comm, &size), "MPI_Comm_size");
  std::vector<int> ranks(static_cast<std::size_t>(size));
  std::iota(ranks.begin(), ranks.end(), 0);
  return ranks;
}

}  // namespace

void startup_barrier(MPI_Comm comm, const std::vector<int>& ranks, const std::string& what,
                     const Patience& patience) {
  if (ranks.size() > 1) StartupBarrier(comm, ranks, what, patience).run();
}

// Where the constructor fails, the destructor frees it.
Communicator::Communicator(MPI_Comm comm) : Communicator() {
  comm_ = comm;
  if (comm_ == MPI_COMM_NULL) return;
  mpi_check(MPI_Comm_set_errhandler(comm_, MPI_ERRORS_RETURN), "MPI_Comm_set_errhandler");
  mpi_check(MPI_Comm_rank(comm_, &rank_), "MPI_Comm_rank");
  mpi_check(MPI_Comm_size(comm_, &size_), "MPI_Comm_size");
}

Communicator::~Communicator() {
  if (comm_ != MPI_COMM_NULL && !mpi_is_finalized()) MPI_Comm_free(&comm_);
}

Communicator Communicator::of(MPI_Comm application, const Patience& patience) {
  if (application == MPI_COMM_NULL) {
    throw Error(ErrorCode::invalid_argument,
                "hora::init: the communicator is MPI_COMM_NULL: only ranks of the "
                "communicator call init");
  }
  int inter = 0;
  mpi_check(MPI_Comm_test_inter(application, &inter), "MPI_Comm_test_inter");
  if (inter != 0) {
    throw Error(ErrorCode::invalid_argument,
                "hora::init: the communicator is an intercommunicator: merge it first "
                "(MPI_Intercomm_merge)");
  }
  startup_barrier(application, all_ranks_of(application), "hora::init", patience);
  MPI_Comm comm = MPI_COMM_NULL;
  mpi_check(MPI_Comm_dup(application, &comm), "MPI_Comm_dup of the application's communicator");
  return Communicator(comm);
}

Communicator Communicator::of(const std::vector<int>& ranks, const Patience& patience) {
  int size = 0;
  int world_rank = 0;
  mpi_check(MPI_Comm_size(MPI_COMM_WORLD, &size), "MPI_Comm_size");
  mpi_check(MPI_Comm_rank(MPI_COMM_WORLD, &world_rank), "MPI_Comm_rank");
  const bool ascends =
      std::adjacent_find(ranks.begin(), ranks.end(), std::greater_equal<>()) == ranks.end();
  if (!ascends || ranks.front() < 0 || ranks.back() >= size) {
    throw Error(ErrorCode::invalid_argument,
                fmt::format("hora::init: InitOptions::ranks must ascend, and be ranks of "
                            "MPI_COMM_WORLD, 0 to {}",
                            size - 1));
  }
  if (!std::binary_search(ranks.begin(), ranks.end(), world_rank)) {
    throw Error(ErrorCode::invalid_argument,
                fmt::format("hora::init: rank {} of MPI_COMM_WORLD is not in InitOptions::ranks: "
                            "only those call init",
                            world_rank));
  }
  if (static_cast<int>(ranks.size()) == size) {
    return world(patience);  // as where none is named
  }
  startup_barrier(MPI_COMM_WORLD, ranks, "hora::init", patience);
  const OwnedGroup world(MPI_COMM_WORLD);
  OwnedGroup group;
  mpi_check(
      MPI_Group_incl(world.handle, static_cast<int>(ranks.size()), ranks.data(), &group.handle),
      "MPI_Group_incl");
  MPI_Comm comm = MPI_COMM_NULL;
  constexpr int kTag = 4711;  // of the group's own agreement
  mpi_check(MPI_Comm_create_group(MPI_COMM_WORLD, group.handle, kTag, &comm),
            "MPI_Comm_create_group");
  return Communicator(comm);
}

Communicator Communicator::split_by_shared_memory() const {
  MPI_Comm comm = MPI_COMM_NULL;
  mpi_check(MPI_Comm_split_type(comm_, MPI_COMM_TYPE_SHARED, rank_, MPI_INFO_NULL, &comm),
            "MPI_Comm_split_type");
  return Communicator(comm);
}

PendingDuplicate::PendingDuplicate(const Communicator& original)
    : duplicate_(std::make_unique<MPI_Comm>(MPI_COMM_NULL)) {
  mpi_check(MPI_Comm_idup(original.get(), duplicate_.get(), &request_), "MPI_Comm_idup");
}

PendingDuplicate::~PendingDuplicate() {
  if (request_ != MPI_REQUEST_NULL) static_cast<void>(duplicate_.release());
}

std::optional<Communicator> PendingDuplicate::poll() {
  int done = 0;
  mpi_check(MPI_Test(&request_, &done, MPI_STATUS_IGNORE), "MPI_Test of a duplicate");
  if (done == 0) return std::nullopt;
  return Communicator(*duplicate_);
}

MpiBootstrap::MpiBootstrap(Communicator communicator, Patience patience)
    : Bootstrap(communicator.rank(), communicator.size()),
      communicator_(std::move(communicator)),
      patience_(std::move(patience)) {}

void MpiBootstrap::meet(const char* call) const {
  startup_barrier(communicator_.get(), all_ranks_of(communicator_.get()),
                  fmt::format("hora::init ({})", call), patience_);
}

std::unique_ptr<Bootstrap> MpiBootstrap::of_host() {
  meet("MPI_Comm_split_type");
  return std::make_unique<MpiBootstrap>(communicator_.split_by_shared_memory(), patience_);
}

std::vector<std::vector<std::byte>> MpiBootstrap::all_gather(std::span<const std::byte> bytes) {
  meet("MPI_Allgather");
  const MPI_Comm comm = communicator_.get();
  const auto ranks = static_cast<std::size_t>(size());
  const std::uint64_t own = bytes.size();
  std::vector<std::uint64_t> lengths(ranks);
  mpi_check(MPI_Allgather(&own, 1, MPI_UINT64_T, lengths.data(), 1, MPI_UINT64_T, comm),
            "MPI_Allgather of lengths");

  // All ranks see the same lengths, so all refuse together.
  std::vector<int> counts(ranks);
  std::vector<int> offsets(ranks);
  std::size_t total = 0;
  for (std::size_t rank = 0; rank < ranks; ++rank) {
    counts[rank] = mpi_count(lengths[rank], fmt::format("rank {}'s part", rank));
    offsets[rank] = mpi_count(total, "the gathered block");
    total += lengths[rank];
  }
  mpi_count(total, "the gathered block");
  std::vector<std::byte> gathered(total);
  mpi_check(MPI_Allgatherv(bytes.data(), static_cast<int>(own), MPI_BYTE, gathered.data(),
                           counts.data(), offsets.data(), MPI_BYTE, comm),
            "MPI_Allgatherv");

  std::vector<std::vector<std::byte>> parts;
  parts.reserve(ranks);
  for (std::size_t rank = 0; rank < ranks; ++rank) {
    const auto begin = gathered.begin() + offsets[rank];
    parts.emplace_back(begin, begin + counts[rank]);
  }
  return parts;
}

MpiPointToPoint::MpiPointToPoint(const Communicator& communicator, int index,
                                 std::vector<int> ranks, std::size_t part_bytes)
    : PointToPoint(index, static_cast<int>(ranks.size())),
      communicator_(communicator),
      ranks_(std::move(ranks)),
      part_bytes_(part_bytes) {
  mpi_count(part_bytes_, "a part of a message");
}

MpiPointToPoint::~MpiPointToPoint() {
  if (mpi_is_finalized()) return;
  for (RequestSlot& slot : slots_) {
    for (MPI_Request& part : slot.parts) {
      if (part == MPI_REQUEST_NULL) continue;
      if (slot.is_receive) MPI_Cancel(&part);
      MPI_Request_free(&part);
    }
  }
}

std::size_t MpiPointToPoint::part_length(const RequestSlot& slot, std::size_t part) const {
  return std::min(part_bytes_, slot.bytes - part * part_bytes_);
}

template <class Call, class Byte>
PointToPoint::Request MpiPointToPoint::start(Call call, std::string_view name, int member, int tag,
                                             std::span<Byte> bytes, bool is_receive) {
  if (free_.empty()) {
    slots_.emplace_back();
    free_.push_back(static_cast<Request>(slots_.size() - 1));
  }
  const Request request = free_.back();
  free_.pop_back();
  RequestSlot& slot = slots_[static_cast<std::size_t>(request)];
  slot.next = 0;
  slot.bytes = bytes.size();
  slot.peer = ranks_.at(static_cast<std::size_t>(member));
  slot.is_receive = is_receive;
  slot.is_cancelled = false;
  // An empty message is one empty part.
  const std::size_t parts =
      std::max<std::size_t>(1, (bytes.size() + part_bytes_ - 1) / part_bytes_);
  slot.parts.assign(parts, MPI_REQUEST_NULL);
  for (std::size_t part = 0; part < parts; ++part) {
    mpi_check(call(bytes.data() + part * part_bytes_, static_cast<int>(part_length(slot, part)),
                   MPI_BYTE, slot.peer, tag, communicator_.get(), &slot.parts[part]),
              name, slot.peer);
  }
  return request;
}

PointToPoint::Request MpiPointToPoint::send(int to, int tag, std::span<const std::byte> bytes) {
  return start(MPI_Isend, "MPI_Isend to", to, tag, bytes, false);
}

PointToPoint::Request MpiPointToPoint::receive(int from, int tag, std::span<std::byte> bytes) {
  return start(MPI_Irecv, "MPI_Irecv from", from, tag, bytes, true);
}

bool MpiPointToPoint::test(Request request) {
  RequestSlot& slot = slots_.at(static_cast<std::size_t>(request));
  for (; slot.next < slot.parts.size(); ++slot.next) {
    int done = 0;
    MPI_Status status;
    mpi_check(MPI_Test(&slot.parts[slot.next], &done, &status),
              slot.is_receive ? "receiving from" : "sending to", slot.peer);
    if (done == 0) return false;
    if (slot.is_receive) check_length(slot, status);
  }
  free_.push_back(request);
  return true;
}

bool MpiPointToPoint::cancel(Request receive) {
  RequestSlot& slot = slots_[static_cast<std::size_t>(receive)];
  if (!slot.is_cancelled) {
    for (std::size_t part = slot.next; part < slot.parts.size(); ++part) {
      // Without effect on one that a message has met; then the rest of it is still to come.
      if (slot.parts[part] != MPI_REQUEST_NULL) MPI_Cancel(&slot.parts[part]);
    }
    slot.is_cancelled = true;
  }
  for (; slot.next < slot.parts.size(); ++slot.next) {
    int done = 0;
    const int result = MPI_Test(&slot.parts[slot.next], &done, MPI_STATUS_IGNORE);
    const bool has_failed = result != MPI_SUCCESS && slot.parts[slot.next] == MPI_REQUEST_NULL;
    if (done == 0 && !has_failed) return false;
  }
  free_.push_back(receive);
  return true;
}

// A longer message is MPI's error (MPICH ends the job, unless MPI_COMM_WORLD returns errors); a
// shorter one would go unnoticed.
void MpiPointToPoint::check_length(const RequestSlot& slot, const MPI_Status& status) const {
  int count = 0;
  mpi_check(MPI_Get_count(&status, MPI_BYTE, &count), "MPI_Get_count");
  const std::size_t expected = part_length(slot, slot.next);
  if (count < 0 || static_cast<std::size_t>(count) != expected) {
    throw Error(
        ErrorCode::transport,
        fmt::format("rank {} sent {} bytes where {} were expected: the ranks do not run the "
                    "same plan. Do all run the same build of hora?",
                    slot.peer, count, expected),
        slot.peer);
  }
}

namespace {

// Head: length of the message (std::uint64_t of this machine), then its first bytes. Just below the
// 4 KiB up to which Open MPI's shared-memory and TCP transports send without asking the receiver.
constexpr std::size_t kHeadBytes = 4032;
constexpr std::size_t kPrefixBytes = sizeof(std::uint64_t);
constexpr std::size_t kInlineBytes = kHeadBytes - kPrefixBytes;
// Buffers of sent messages that are longer than this are freed.
constexpr std::size_t kKeptBytes = std::size_t{64} << 10;
constexpr int kHeadTag = 0;
constexpr int kRestTag = 1;

// For a link that is destroyed with messages under way, which happens only before an abort: MPI may
// still access the buffer, so it is leaked. Does not wait for a peer.
void abandon(MPI_Request& request, std::vector<std::byte>& buffer, bool is_receive) noexcept {
  if (request == MPI_REQUEST_NULL) return;
  // A persistent request that is not started counts as done, and may not be cancelled.
  int done = 0;
  if (is_receive && MPI_Request_get_status(request, &done, MPI_STATUS_IGNORE) == MPI_SUCCESS &&
      done == 0) {
    MPI_Cancel(&request);
  }
  if (MPI_Test(&request, &done, MPI_STATUS_IGNORE) == MPI_SUCCESS && done != 0 &&
      request == MPI_REQUEST_NULL) {
    return;
  }
  if (done == 0) static_cast<void>(new (std::nothrow) std::vector<std::byte>(std::move(buffer)));
  MPI_Request_free(&request);
}

}  // namespace

MpiTreeLink::MpiTreeLink(const Communicator& communicator, std::vector<int> leaders, int node)
    : communicator_(communicator),
      leaders_(std::move(leaders)),
      node_of_rank_(static_cast<std::size_t>(communicator.size()), -1),
      node_(node),
      head_(kHeadBytes) {
  for (std::size_t i = 0; i < leaders_.size(); ++i) {
    node_of_rank_.at(static_cast<std::size_t>(leaders_[i])) = static_cast<int>(i);
  }
  mpi_check(MPI_Recv_init(head_.data(), static_cast<int>(kHeadBytes), MPI_BYTE, MPI_ANY_SOURCE,
                          kHeadTag, communicator_.get(), &head_request_),
            "MPI_Recv_init for negotiation");
  mpi_check(MPI_Start(&head_request_), "MPI_Start for negotiation");
}

MpiTreeLink::~MpiTreeLink() {
  if (mpi_is_finalized()) return;
  abandon(head_request_, head_, true);
  for (Arriving& arriving : arriving_) abandon(arriving.rest, arriving.message.bytes, true);
  for (Outgoing& outgoing : in_flight_) {
    abandon(outgoing.head, outgoing.bytes, false);
    abandon(outgoing.rest, outgoing.bytes, false);
  }
}

void MpiTreeLink::send(int node, std::span<const std::byte> message) {
  if (message.size() > kMaximumBytes) {
    throw Error(ErrorCode::invalid_argument,
                fmt::format("a message of negotiation from node {} to node {} is {} bytes long, at "
                            "most {} are allowed: submit fewer new names at once, or shorter ones",
                            node_, node, message.size(), kMaximumBytes));
  }
  const int peer = leaders_.at(static_cast<std::size_t>(node));
  if (free_.empty()) flushed();
  if (free_.empty()) free_.emplace_back();
  in_flight_.splice(in_flight_.end(), free_, free_.begin());
  Outgoing& outgoing = in_flight_.back();
  const std::uint64_t length = message.size();
  outgoing.bytes.resize(kPrefixBytes + message.size());
  std::memcpy(outgoing.bytes.data(), &length, kPrefixBytes);
  std::copy(message.begin(), message.end(), outgoing.bytes.begin() + kPrefixBytes);
  const std::size_t head_bytes = std::min(outgoing.bytes.size(), kHeadBytes);
  mpi_check(MPI_Isend(outgoing.bytes.data(), static_cast<int>(head_bytes), MPI_BYTE, peer, kHeadTag,
                      communicator_.get(), &outgoing.head),
            "MPI_Isend of negotiation to", peer);
  if (outgoing.bytes.size() > kHeadBytes) {
    mpi_check(MPI_Isend(outgoing.bytes.data() + kHeadBytes,
                        mpi_count(outgoing.bytes.size() - kHeadBytes, "a message of negotiation"),
                        MPI_BYTE, peer, kRestTag, communicator_.get(), &outgoing.rest),
              "MPI_Isend of negotiation to", peer);
  }
}

bool MpiTreeLink::sent(Outgoing& outgoing) {
  int done = 0;
  mpi_check(MPI_Test(&outgoing.head, &done, MPI_STATUS_IGNORE), "MPI_Test of a sent message");
  if (done != 0) {
    mpi_check(MPI_Test(&outgoing.rest, &done, MPI_STATUS_IGNORE), "MPI_Test of a sent message");
  }
  return done != 0;
}

bool MpiTreeLink::flushed() {
  for (auto outgoing = in_flight_.begin(); outgoing != in_flight_.end();) {
    const auto next = std::next(outgoing);
    if (sent(*outgoing)) {
      if (outgoing->bytes.capacity() > kKeptBytes) std::vector<std::byte>().swap(outgoing->bytes);
      free_.splice(free_.begin(), in_flight_, outgoing);
    }
    outgoing = next;
  }
  return in_flight_.empty();
}

std::optional<TreeLink::Received> MpiTreeLink::receive() {
  take_heads();
  for (auto entry = arriving_.begin(); entry != arriving_.end(); ++entry) {
    const bool node_waits = std::any_of(arriving_.begin(), entry, [&](const Arriving& earlier) {
      return earlier.message.node == entry->message.node;
    });
    if (node_waits) continue;
    int done = 1;
    if (entry->rest != MPI_REQUEST_NULL) {
      mpi_check(MPI_Test(&entry->rest, &done, MPI_STATUS_IGNORE),
                "MPI_Test of the rest of a message from node", entry->message.node);
    }
    if (done != 0) {
      Received received = std::move(entry->message);
      arriving_.erase(entry);
      return received;
    }
  }
  return std::nullopt;
}

// Heads are taken in MPI's order, which for one source is the order of sending; the rests of one
// source are received in that order too, because their receives are posted in it.
void MpiTreeLink::take_heads() {
  for (;;) {
    int done = 0;
    MPI_Status status;
    mpi_check(MPI_Test(&head_request_, &done, &status), "MPI_Test for negotiation");
    if (done == 0) return;
    int count = 0;
    mpi_check(MPI_Get_count(&status, MPI_BYTE, &count), "MPI_Get_count");
    arriving_.push_back(take_head(status.MPI_SOURCE, static_cast<std::size_t>(count)));
    mpi_check(MPI_Start(&head_request_), "MPI_Start for negotiation");
    if (arriving_.back().rest == MPI_REQUEST_NULL) {
      return;  // something to return; what else has arrived is taken next time
    }
  }
}

MpiTreeLink::Arriving MpiTreeLink::take_head(int source, std::size_t bytes) {
  std::uint64_t length = 0;
  const int node = node_of_rank_.at(static_cast<std::size_t>(source));
  if (bytes >= kPrefixBytes) std::memcpy(&length, head_.data(), kPrefixBytes);
  if (node < 0 || bytes < kPrefixBytes || length > kMaximumBytes ||
      bytes != kPrefixBytes + std::min<std::size_t>(length, kInlineBytes)) {
    throw Error(
        ErrorCode::transport,
        fmt::format("rank {} sent a malformed message of negotiation: {} bytes that announce "
                    "a length of {}. Do all ranks run the same build of hora?",
                    source, bytes, length),
        source);
  }
  Arriving arriving{{node, std::vector<std::byte>(length)}, MPI_REQUEST_NULL};
  const std::size_t inline_bytes = bytes - kPrefixBytes;
  std::copy_n(head_.begin() + kPrefixBytes, inline_bytes, arriving.message.bytes.begin());
  if (length > inline_bytes) {
    mpi_check(MPI_Irecv(arriving.message.bytes.data() + inline_bytes,
                        mpi_count(length - inline_bytes, "a message of negotiation"), MPI_BYTE,
                        source, kRestTag, communicator_.get(), &arriving.rest),
              "MPI_Irecv of negotiation from", source);
  }
  return arriving;
}

}  // namespace hora::internal
